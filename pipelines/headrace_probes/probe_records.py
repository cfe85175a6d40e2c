"""What a probe is asked, and what it has found."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from headrace.recipe.base import Parallel
from headrace.record import Record

SCHEMA_VERSION = 1
REPORT = "report.html"
"""Name of the report in its folder, which is written when the run ends."""

Part = Literal["gemm", "memory", "network", "storage", "train", "container"]
PARTS: tuple[Part, ...] = get_args(Part)


class ProbeOptions(Record):
    """What is measured, and how thoroughly."""

    only: tuple[Part, ...] = Field(default=PARTS, min_length=1)
    role: str = ""
    """Role of the site; empty: the usual one."""
    nodes: Parallel | None = None
    """Nodes of it; null: as many as is usual."""
    quick: bool = False
    """Small sizes and few repeats: shows that all works, in seconds; its figures mean little."""

    @property
    def words(self) -> tuple[str, ...]:
        """Options of the command that ask for the same."""
        given = {
            "--role": self.role,
            "--nodes": str(self.nodes or ""),
            "--only": "" if self.only == PARTS else ",".join(self.only),
        }
        words = (word for option, value in given.items() if value for word in (option, value))
        return (*words, *(("--quick",) if self.quick else ()))

    @property
    def repeats(self) -> int:
        """How often each figure is measured, after a warm-up."""
        return 3 if self.quick else 10

    @property
    def clients(self) -> tuple[int, ...]:
        """Numbers of processes of a node that use storage at once."""
        return (1,) if self.quick else (1, 4)


class ProbeFigure(Record):
    """What is measured; figures of two probes are compared when all of it is the same."""

    part: Part
    name: str
    """Such as `fp32 on cpu`."""
    settings: str
    """Sizes, threads, program."""
    unit: str
    """`GFLOP/s`, `GB/s` and `MB/s` (of 1e9 and 1e6 bytes), `IOPS`, `1/s`, `images/s`, `us`, `s`."""

    @property
    def key(self) -> ProbeFigure:
        """That alone, without what was measured."""
        return ProbeFigure(part=self.part, name=self.name, settings=self.settings, unit=self.unit)

    @property
    def title(self) -> str:
        """Part and name."""
        return f"{self.part}: {self.name}"


class Measurement(ProbeFigure):
    """One figure of one node, or of all nodes together, measured several times."""

    values: tuple[float, ...] = Field(min_length=1)
    """One value a repeat."""
    lower_is_better: bool = False
    limit: float | None = None
    """The most that the hardware can give, in the same unit; null: not known."""
    limit_source: str = ""
    """Where that comes from, and whether it is an estimate."""
    node: str = ""
    """Node it was measured on; empty: several together."""
    ranks: int = 1
    """Processes that did it together, of a training."""
    message_bytes: int | None = None
    """Size of each message, of the network."""


class Findings(Record):
    """What one process, one node or a whole probe has measured."""

    measurements: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out, and why."""


class ProbeRecord(Record):
    """`probe.json` of a run: all that a probe has found."""

    schema_version: int = SCHEMA_VERSION
    site: str
    role: str
    backend: str
    options: ProbeOptions
    container: str
    """Runtime and image that the measurements ran in; empty: none."""
    started_at: float
    """Seconds since the epoch."""
    finished_at: float
    nodes: tuple[dict[str, Any], ...]
    """What each node is, as `headrace.steps.node_facts` tells it."""
    findings: Findings


class ProbedFolder(Record):
    """A folder whose storage is measured."""

    name: str
    """Name of the tier, or `shared`."""
    folder: str
    """An empty folder there, which whoever asks removes."""


class ProbeRequest(Record):
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
    targets: tuple[ProbedFolder, ...] = ()
    clients: tuple[int, ...] = ()
    """Numbers of processes that use the storage at once."""


def answer_file(request: Path) -> Path:
    """Where the answer to the request in a file is written."""
    return request.with_suffix(".answer.json")
