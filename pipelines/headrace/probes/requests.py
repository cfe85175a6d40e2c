"""What one process of a node is asked to measure, and how it answers: by files of the step."""

from __future__ import annotations

from pathlib import Path

from headrace.probes.records import Part, ProbeOptions
from headrace.record import Record


class Target(Record):
    """A folder whose storage is measured."""

    name: str
    """Name of the tier, or `shared`."""
    folder: str
    """An empty folder there, which whoever asks removes."""


class Request(Record):
    """What one process measures; of several that meet, its rank."""

    part: Part
    options: ProbeOptions
    node: str = ""
    """Name of its node; empty: what it measures is not of one node alone."""
    cores: int = 1
    """Threads that compute."""
    rank: int = 0
    local_rank: int = 0
    ranks_per_node: int = 1
    world_size: int = 1
    meeting: str = ""
    """File by which ranks find each other."""
    host: str = ""
    """Address of its node that the others reach it by."""
    targets: tuple[Target, ...] = ()
    clients: tuple[int, ...] = ()
    """Numbers of processes that use the storage at once."""


def answer_file(request: Path) -> Path:
    """Where the answer to the request in a file is written."""
    return request.with_suffix(".answer.json")
