"""A node's part of a probe: it starts the measuring processes, and returns their findings.

The worker itself measures nothing, since its threads would disturb it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import psutil

from headrace.clusters.cancellable_call import wanted
from headrace.errors import StepError
from headrace.files import tiers
from headrace.files.atomic import read_record, write_record
from headrace.processes.children import Child, ChildGroup
from headrace.processes.identity import begin_child
from headrace.recipe.site import Tier
from headrace.steps.model_process import python_module, start_forked
from headrace_probes.probe_records import Findings, Part, ProbedFolder, ProbeRequest, answer_file

_PREFIX = "headrace-probe-"
_MODULES: dict[Part, str] = {
    "gemm": "arithmetic",
    "memory": "memory",
    "network": "network",
    "storage": "storage",
    "train": "training",
}
"""Module of each part; its function `measure(request)` measures it."""


@dataclass(frozen=True, kw_only=True)
class NodeJob:
    """Job of one node: one request for each process."""

    requests: tuple[ProbeRequest, ...]
    folder: str
    """Folder of the step that all nodes share, for requests and answers."""
    label: str
    """Name of the job, for its files."""
    env: Mapping[str, str]
    logs: str
    tiers: tuple[Tier, ...] = ()
    shared: str = ""
    """Shared folder whose storage is measured; empty if it is not."""


@dataclass(frozen=True, kw_only=True)
class NodeFound:
    """Findings of a node."""

    findings: Findings
    cpu_use: float
    """Share of its CPUs that was busy during the job, 0 to 1."""


def measure_here(job: NodeJob) -> NodeFound:
    """Run the processes of a job, and wait for them.

    Side effects: makes folders on the measured storage, and always removes them.

    Raises:
        StepError: A process failed.
    """
    psutil.cpu_percent()
    with _targets(job) as (targets, notes):
        requests = [each.model_copy(update={"targets": targets}) for each in job.requests]
        findings = _measured(job, requests)
    use = psutil.cpu_percent() / 100
    found = Findings.of([Findings(notes=tuple(notes)), *findings])
    return NodeFound(findings=found, cpu_use=use)


def _measured(job: NodeJob, requests: Sequence[ProbeRequest]) -> list[Findings]:
    files = [Path(job.folder) / f"{job.label}-{each.rank}.json" for each in requests]
    children = []
    for file, request in zip(files, requests, strict=True):
        write_record(file, request)
        children.append(
            Child(
                name=f"probe {request.part} {request.rank}",
                command=python_module("headrace_probes.on_node", str(file)),
                log=Path(job.logs) / f"{job.label}-{request.rank}.log",
                env=job.env,
            )
        )
    with ChildGroup(children, start=start_forked) as group:
        ends = group.supervise(wanted)
    for end in ends:
        if end.failed:
            raise StepError(
                f"The {end.name} ended by {end.cause}",
                f"{end.advice}See {end.log}.\n{end.last_words}",
            )
    answers = (read_record(answer_file(file), Findings) for file in files)
    return [each for each in answers if each is not None]  # a stopped process has none


@contextmanager
def _targets(job: NodeJob) -> Iterator[tuple[tuple[ProbedFolder, ...], list[str]]]:
    """Make folders on the storage to measure, removed at the end; yield them, and notes."""
    made: list[ProbedFolder] = []
    notes: list[str] = []
    try:
        for tier in job.tiers:
            folder = tiers.folder_of(tier)
            problem = tiers.prepare(folder)
            if problem:
                notes.append(f"tier {tier.name}: {folder} {problem}")
            else:
                made.append(_target(tier.name, folder))
        if job.shared:
            made.append(_target("shared", Path(job.shared)))
        yield tuple(made), notes
    finally:
        for target in made:
            shutil.rmtree(target.folder)


def _target(name: str, parent: Path) -> ProbedFolder:
    return ProbedFolder(name=name, folder=tempfile.mkdtemp(prefix=_PREFIX, dir=parent))


def main(arguments: list[str]) -> int:
    """Measure one part in this process: `python -m headrace_probes.on_node REQUEST`.

    The answer is written beside the request.
    """
    begin_child()
    file = Path(arguments[0])
    request = read_record(file, ProbeRequest)
    if request is None:
        raise StepError(f"There is no request {file}")
    found: Findings = import_module(f"{__package__}.{_MODULES[request.part]}").measure(request)
    write_record(answer_file(file), found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
