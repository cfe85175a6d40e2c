"""The probe step: measures the nodes of a lease.

Parts of a single node run on one node of each machine, all machines at once; network and training
run on all nodes together; the step itself times the start of containers, outside of them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from headrace.clusters import lease_client
from headrace.clusters.fleet import Fleet
from headrace.clusters.node_calls import Node, NodeCalls
from headrace.files.atomic import write_record
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.steps.context import StepContext
from headrace.steps.model_process import model_environment
from headrace.steps.node_facts import facts_of
from headrace_probes import container
from headrace_probes.on_node import NodeFound, NodeJob, measure_here
from headrace_probes.probe_records import (
    REPORT,
    Findings,
    Part,
    ProbeOptions,
    ProbeRecord,
    ProbeRequest,
)


def run(context: StepContext) -> dict[str, Any]:
    """Measure nodes: as many as the input `nodes` names, by default 1, by the input `options`.

    Returns `probe`, the file of the `ProbeRecord`, and `report`, the later path of its report.

    Raises:
        LeaseError: The nodes do not join in time.
        StepError: A measuring process failed.
    """
    count = int(str(context.spec.inputs.get("nodes") or 1))
    options = ProbeOptions.model_validate(context.spec.inputs["options"])
    with Fleet.open(context.lease_folder) as fleet:
        nodes = fleet.nodes(count, fleet.role.start_timeout, check=context.check)
        return _Probe(context, fleet, nodes, options).run(facts_of(context, fleet, nodes))


class _Probe:
    """The measurements of one lease."""

    def __init__(
        self, context: StepContext, fleet: NodeCalls, nodes: Sequence[Node], options: ProbeOptions
    ) -> None:
        self._context, self._fleet, self._nodes = context, fleet, nodes
        self._options = options
        self._role = fleet.role
        self._uses: list[tuple[float, float]] = []
        self._number = 0

    def run(self, facts: list[dict[str, Any]]) -> dict[str, Any]:
        """Measure all parts; see `run` of this module."""
        parts: dict[Part, Callable[[], Iterator[Findings]]] = {
            "gemm": lambda: self._alone("gemm"),
            "memory": lambda: self._alone("memory"),
            "network": self._network,
            "storage": self._storage,
            "train": self._train,
            "container": self._container,
        }
        found: list[Findings] = []
        wanted = [part for part in parts if part in self._options.only]
        self._context.folder.parts.mkdir(parents=True, exist_ok=True)
        for done, part in enumerate(wanted):
            self._context.progress(done, len(wanted), "parts", part)
            found += parts[part]()
        self._context.progress(len(wanted), len(wanted), "parts", "done")
        self._context.usage = self._usage()
        file = self._context.run_folder.probe
        write_record(file, self._record(facts, found))
        report = self._context.run_folder.report / REPORT
        return {"probe": str(file), "report": str(report)}

    def _alone(self, part: Part) -> Iterator[Findings]:
        firsts = {node.host: node for node in reversed(self._nodes)}
        nodes = [node for node in self._nodes if firsts[node.host] == node]
        cores = self._role.cpus_per_node
        yield from self._on(nodes, [self._job(part, node, cores=cores) for node in nodes])

    def _network(self) -> Iterator[Findings]:
        several = len(self._nodes) > 1
        if not several:
            yield Findings(notes=("network: one node, so its two ranks talk only over that",))
        hosts = {node.host for node in self._nodes}
        if several and len(hosts) == 1:
            yield Findings(notes=("network: all nodes are one machine: no network is between",))
        if shutil.which("osu_latency") is None:
            yield Findings(notes=("network: osu-micro-benchmarks are not installed",))
        yield from self._ranks("network", 1 if several else 2, self._nodes)

    def _storage(self) -> Iterator[Findings]:
        shared = str(self._context.site.folder)
        (first, *_), tiers = self._nodes, tuple(self._context.site.tiers)
        job = self._job("storage", first, clients=self._options.clients)
        yield from self._on([first], [replace(job, tiers=tiers, shared=shared)])
        if len(self._nodes) > 1:
            yield self._on_shared(shared)

    def _on_shared(self, shared: str) -> Findings:
        """Measure the shared folder on all nodes at once; sum their rates."""
        clients = self._options.clients[-1:]
        jobs = [
            replace(self._job("storage", node, clients=clients), shared=shared)
            for node in self._nodes
        ]
        found = self._on(self._nodes, jobs)
        first = found[0].measurements
        rows = zip(*(each.measurements for each in found), strict=True)
        summed = [tuple(map(sum, zip(*(each.values for each in row), strict=True))) for row in rows]
        of_all = f" on each of {len(self._nodes)} nodes"
        return Findings(
            measurements=tuple(
                each.model_copy(update={"values": values, "name": each.name + of_all, "node": ""})
                for each, values in zip(first, summed, strict=True)
            ),
            notes=tuple(note for each in found for note in each.notes),
        )

    def _train(self) -> Iterator[Findings]:
        yield from self._ranks("train", 1, self._nodes[:1])
        if len(self._nodes) * self._role.ranks_per_node > 1:
            yield from self._ranks("train", self._role.ranks_per_node, self._nodes)

    def _container(self) -> Iterator[Findings]:
        lease = self._context.lease_folder
        yield container.measure(lease, lease_client.spec(lease), self._options, self._context.check)

    def _ranks(self, part: Part, per_node: int, nodes: Sequence[Node]) -> list[Findings]:
        """Measure with ranks that meet, `per_node` on each node."""
        self._number += 1
        meeting = self._context.folder.parts / f"meeting-{self._number}"
        jobs = [
            self._job(
                part,
                node,
                range(index * per_node, (index + 1) * per_node),
                cores=self._role.threads_per_rank,
                ranks_per_node=per_node,
                world_size=len(nodes) * per_node,
                meeting=str(meeting),
                host=node.host,
            )
            for index, node in enumerate(nodes)
        ]
        return self._on(nodes, jobs)

    def _job(self, part: Part, node: Node, ranks: range = range(1), **more: Any) -> NodeJob:
        folder, base = self._context.folder, {"part": part, "node": node.name, **more}
        return NodeJob(
            requests=tuple(
                ProbeRequest(**base, options=self._options, rank=rank, local_rank=rank - ranks[0])
                for rank in ranks
            ),
            folder=str(folder.parts),
            label=f"{part}-{self._number}-{node.name}",
            env=model_environment(self._role),
            logs=str(folder.logs),
        )

    def _on(self, nodes: Sequence[Node], jobs: Sequence[NodeJob]) -> list[Findings]:
        start_s = time.monotonic()
        found: list[NodeFound] = self._fleet.on_nodes(
            measure_here, [(job,) for job in jobs], nodes, check=self._context.check
        )
        took_s = time.monotonic() - start_s
        self._uses += [(took_s, each.cpu_use) for each in found]
        return [each.findings for each in found]

    def _usage(self) -> AttemptUsage:
        total_s = sum(seconds for seconds, _ in self._uses)
        busy_s = sum(seconds * use for seconds, use in self._uses)
        count = len(self._nodes)
        return AttemptUsage(
            node=self._nodes[0].name,
            nodes=count,
            gpus=float(count * self._role.batch.gpus_per_node),
            cpus=float(count * self._role.cpus_per_node),
            cpu_use=busy_s / total_s if total_s else None,
        )

    def _record(self, facts: list[dict[str, Any]], found: Sequence[Findings]) -> ProbeRecord:
        of_role = self._role.batch.container
        is_bare = of_role is None or of_role.runtime == "none"
        return ProbeRecord(
            site=self._context.site.name,
            role=lease_client.spec(self._context.lease_folder).role_name,
            backend=self._role.backend,
            options=self._options,
            container="" if of_role is None or is_bare else f"{of_role.runtime} {of_role.image}",
            started_at=self._context.started_at,
            finished_at=time.time(),
            nodes=tuple(facts),
            findings=Findings.of(found),
        )
