"""Launches all ranks together, and again from the last checkpoint when one died.

`Gang` is the driver's side; `run_node` is what it has each node do.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.checkpoints import files as checkpoints
from headrace.clusters.node_calls import Node, NodeCalls
from headrace.data.instantiate import check_code
from headrace.data.streaming import in_turn
from headrace.errors import HeadraceError, WorkerLostError
from headrace.files.atomic import read_record, write_record, write_text
from headrace.files.layout import RunFolder
from headrace.files.machine import available_memory_bytes, free_ports
from headrace.files.manifest import Manifest
from headrace.processes.children import start_program
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.staging.gang_store import Brought
from headrace.staging.peers import PeerGroup, groups_of
from headrace.steps.context import StepContext, resolved
from headrace.steps.model_process import start_forked
from headrace.steps.networks import interface_of, interfaces
from headrace.training.data_on_node import data_on_node, manifest_of
from headrace.training.launch import rank_children
from headrace.training.launch_records import (
    LaunchFolder,
    NodeLaunch,
    NodeOutcome,
    NodeReady,
    Paused,
    TrainingOutcome,
    TrainingProgress,
)
from headrace.training.mpi import launching, run_together
from headrace.training.own_gpus import own_gpus
from headrace.training.rank_failures import PortTakenError, verdict
from headrace.training.restarts import Restarts
from headrace.training.script_logs import ScriptLogs
from headrace.training.training_plan import check_memory, plan_training, training_fingerprint
from headrace.training.watch_ranks import run_watched, tell_failure

_MAX_PORT_CLASHES, _SECRET_BYTES, _STOPPING_S = 5, 32, 5.0


class Gang:
    """All ranks of a training on all nodes.

    `size` are nodes, and ranks on each; `dataset` is empty where there is none. `follow` is called
    with each progress report of rank 0, and None while ranks start. `skipped` are files of damaged
    shards that are left out.

    `trained` is what training gave, None for a script and before it is done; `streamed` what nodes
    have fetched during the last launch, by name; `problem` that ranks of a script did not meet.
    """

    def __init__(
        self,
        context: StepContext,
        fleet: NodeCalls,
        size: tuple[int, int],
        dataset: str,
        follow: Callable[[TrainingProgress | None], None],
        skipped: Collection[str] = (),
    ) -> None:
        self._context = context
        self._fleet = fleet
        self._num_nodes, self._ranks_per_node = size
        self._dataset = dataset
        self._follow = follow
        self._skipped = tuple(sorted(skipped))
        self._number = 0
        self.trained: TrainingOutcome | None = None
        self.problem = ""
        self.streamed: dict[str, Brought] = {}

    def run(self) -> list[str]:
        """Run all ranks to their end; launch them again when one died, not when user code failed.

        Returns why they were launched again, each time; raises when ranks died too often.
        """
        restarts = Restarts(self._context)
        clashes = 0
        while (error := self._attempt()) is not None:
            if isinstance(error, PortTakenError) and clashes < _MAX_PORT_CLASHES:
                clashes += 1
                continue
            if not isinstance(error, WorkerLostError):
                raise error
            if not restarts.may_follow(error):
                raise WorkerLostError(
                    f"{error.what} (after {len(restarts.causes)} restarts of all ranks)", error.hint
                ) from error
        return restarts.causes

    def _attempt(self) -> HeadraceError | None:
        try:
            return verdict(self._launch())
        except WorkerLostError as lost:
            return lost

    def _launch(self) -> list[NodeOutcome]:
        role = self._context.site.roles[self._context.recipe.train.role]
        self._follow(None)
        nodes = self._fleet.nodes(self._num_nodes, role.start_timeout, check=self._context.check)
        folder, resume = self._next_folder(), self._resume()
        launches = self._launches(nodes, resume, self._groups(nodes, folder))
        self._context.event(
            "launch", number=self._number, nodes=[node.name for node in nodes], resume=resume
        )

        logs = ScriptLogs(launches[0]) if self._context.recipe.train.is_script else None

        def check() -> None:
            if logs is not None:
                logs.look()
            self._follow(read_record(folder.progress, TrainingProgress))

        with launching(launches[0], role, self._context.lease_folder):
            try:
                outcomes = self._fleet.on_nodes(
                    run_node, [(launch,) for launch in launches], nodes, check=check
                )
            finally:
                write_text(folder.stop, "the launch is over")
        if logs is not None:
            logs.look(at_end=True)
        if (last := read_record(folder.progress, TrainingProgress)) is not None:
            self._follow(last)
        paused = read_record(folder.paused, Paused)
        if paused is not None:
            raise self._context.lease_over(f"Training stopped after step {paused.step}")
        if any(outcome.stopped for outcome in outcomes):
            self._context.check()  # nodes may notice a cancel before this process
        found = {outcome.node: outcome.streamed for outcome in outcomes}
        self.streamed = {node: each for node, each in found.items() if each != Brought()}
        for node, each in self.streamed.items():
            self._context.event("streamed", node=node, **each.model_dump())
        self.trained = read_record(folder.trained, TrainingOutcome)
        if not all(outcome.has_met for outcome in outcomes):
            self.problem = (
                f"{self._num_nodes * self._ranks_per_node} ranks ran and formed no process group: "
                "each trained on its own and wrote the same files. Set train.nodes and "
                "train.ranks_per_node to 1, or call torch.distributed.init_process_group()"
            )
        return outcomes

    def _groups(self, nodes: Sequence[Node], folder: LaunchFolder) -> list[PeerGroup | None]:
        """Who takes shards from whom while training runs."""
        recipe = self._context.recipe
        passes_on = recipe.stage.partial and not recipe.train.is_script
        mode = recipe.stage.peers if passes_on and in_turn(recipe.data) else "never"
        return groups_of(folder.path, [node.host for node in nodes], mode)

    def _next_folder(self) -> LaunchFolder:
        while True:
            self._number += 1
            folder = self._context.folder.parts / f"launch-{self._number:03d}"
            with suppress(FileExistsError):  # an earlier driver of this step used the number
                folder.mkdir(parents=True)
                return LaunchFolder(folder)

    def _resume(self) -> str | None:
        folder = self._context.run_folder.checkpoints
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints.remove_partial(folder)
        is_script = self._context.recipe.train.is_script
        if is_script:
            self._context.run_folder.work.mkdir(exist_ok=True)
        find = checkpoints.newest_of_script if is_script else checkpoints.newest_whole
        newest = find(folder, partial(self._context.event, "damaged_checkpoint"))
        return str(newest) if newest is not None else None

    def _launches(
        self, nodes: Sequence[Node], resume: str | None, groups: Sequence[PeerGroup | None]
    ) -> list[NodeLaunch]:
        first, ends_at = nodes[0], self._context.ends_at
        secret, ports = secrets.token_hex(_SECRET_BYTES), self._ports(nodes)
        return [
            NodeLaunch(
                run_folder=str(self._context.run_folder.path),
                step_folder=str(self._context.folder.path),
                dataset=self._dataset,
                number=self._number,
                node_index=index,
                node_name=node.name,
                num_nodes=self._num_nodes,
                ranks_per_node=self._ranks_per_node,
                host=node.host,
                hosts=tuple(each.host for each in nodes),
                master_address=first.host,
                master_port=ports[0],
                ports=ports,
                secret=secret,
                resume=resume,
                stop_at=None if ends_at is None else ends_at - _STOPPING_S,
                notice=str(self._context.lease_folder.notice),
                at_risk=str(self._context.lease_folder.at_risk),
                skipped=self._skipped,
                group=group,
            )
            for index, (node, group) in enumerate(zip(nodes, groups, strict=True))
        ]

    def _ports(self, nodes: Sequence[Node]) -> tuple[int, ...]:
        """Return ports that are free on their nodes: of each rank of a script, else of rank 0."""
        is_script = self._context.recipe.train.is_script
        asked, each = (nodes, (0,) * self._ranks_per_node) if is_script else (nodes[:1], (0,))
        found = (self._fleet.call(node, free_ports, node.host, *each) for node in asked)
        return tuple(port for ports in found for port in ports)


def run_node(launch: NodeLaunch) -> NodeOutcome:
    """Run the ranks of a node to their end; return their faults, without raising them.

    Ranks are stopped within a second if the step was cancelled or has ended, its driver has ended,
    or ranks of another node failed.
    """
    recipe, site = resolved(RunFolder(Path(launch.run_folder)))
    manifest = _checked_manifest(launch, recipe, site)
    began_s = time.monotonic()
    with data_on_node(launch, recipe, site, manifest) as copy:
        node = NodeReady(
            launch=launch,
            dataset=str(copy.folder) if copy else "",
            fingerprint=training_fingerprint(recipe, manifest),
            staging_s=time.monotonic() - began_s,
            interface=interface_of(launch.host, interfaces()),
            slurm_name=os.environ.get("SLURMD_NODENAME", ""),
        )
        write_record(launch.folder.ready(launch.node_index), node)
        role = site.roles[recipe.train.role]
        outcome = _run_ranks(node, recipe, role)
        if outcome.failures:
            tell_failure(launch, outcome)
        found = (read_record(launch.folder.streamed(rank), Brought) for rank in launch.ranks)
        relayed = copy.relayed.brought if copy and copy.relayed else Brought()
        streamed = sum((each for each in found if each is not None), start=relayed)
    return outcome.model_copy(update={"streamed": streamed})


def _run_ranks(node: NodeReady, recipe: Recipe, role: Role) -> NodeOutcome:
    if role.launcher is not None:
        return run_together(node.launch)
    start = start_program if recipe.train.is_script else start_forked
    with own_gpus(node.launch, recipe, role) as role:
        children = rank_children(node, recipe, role)
        return run_watched(node.launch, children, recipe.train.hang_timeout, start)


def _checked_manifest(launch: NodeLaunch, recipe: Recipe, site: Site) -> Manifest:
    manifest = manifest_of(launch.dataset, site).without(launch.skipped)
    role = site.roles[recipe.train.role]
    if recipe.reads_shards:
        check_memory(plan_training(recipe, role, manifest), available_memory_bytes())
    if recipe.train.script is not None:
        check_code(recipe.train.script, site)
    return manifest
