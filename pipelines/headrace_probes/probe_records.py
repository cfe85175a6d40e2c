"""Options, requests and findings of a probe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from headrace.recipe.base import Parallel
from headrace.record import Record

SCHEMA_VERSION = 1
REPORT = "report.html"
"""Name of the report in its folder; written when the run ends."""

Part = Literal["gemm", "memory", "network", "storage", "train", "container"]
PARTS: tuple[Part, ...] = get_args(Part)


class ProbeOptions(Record):
    """Parts to measure, and sizes."""

    only: tuple[Part, ...] = Field(default=PARTS, min_length=1)
    role: str = ""
    """Role of the site; empty for the default."""
    nodes: Parallel | None = None
    """Number of its nodes; null for the default."""
    quick: bool = False
    """Small sizes and few repeats: tests in seconds that all works; its figures mean little."""

    @property
    def words(self) -> tuple[str, ...]:
        """Equivalent options of the command."""
        given = {
            "--role": self.role,
            "--nodes": str(self.nodes or ""),
            "--only": "" if self.only == PARTS else ",".join(self.only),
        }
        words = (word for option, value in given.items() if value for word in (option, value))
        return (*words, *(("--quick",) if self.quick else ()))

    @property
    def repeats(self) -> int:
        """Repeats of each figure, after a warm-up."""
        return 3 if self.quick else 10

    @property
    def clients(self) -> tuple[int, ...]:
        """Numbers of processes per node that use storage at once."""
        return (1,) if self.quick else (1, 4)


class ProbeFigure(Record):
    """A measured quantity; two probes are compared by figures that are equal in all fields."""

    part: Part
    name: str
    """Name, as `fp32 on cpu`."""
    settings: str
    """Sizes, threads, program."""
    unit: str
    """`GFLOP/s`, `GB/s` and `MB/s` (of 1e9 and 1e6 bytes), `IOPS`, `1/s`, `images/s`, `us`, `s`."""

    @property
    def key(self) -> ProbeFigure:
        """Return the figure without its measurement."""
        return ProbeFigure(part=self.part, name=self.name, settings=self.settings, unit=self.unit)

    @property
    def title(self) -> str:
        """Part and name."""
        return f"{self.part}: {self.name}"


class Measurement(ProbeFigure):
    """One figure of one node, or of all nodes together, measured several times."""

    values: tuple[float, ...] = Field(min_length=1)
    """One value per repeat."""
    lower_is_better: bool = False
    limit: float | None = None
    """Limit of the hardware, in the same unit; null if unknown."""
    limit_source: str = ""
    """Source of the limit, and whether it is an estimate."""
    node: str = ""
    """Node of the measurement; empty for several together."""
    ranks: int = 1
    """Processes of a training that were measured together."""
    message_bytes: int | None = None
    """Size of each message of a network measurement."""


class Findings(Record):
    """Measurements of one process, one node or a whole probe."""

    measurements: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
    machines: dict[str, dict[str, str]] = {}
    """Processor, GPUs and libraries of linear algebra by node, if `gemm` was measured."""

    @classmethod
    def of(cls, parts: Sequence[Findings]) -> Findings:
        """Return several findings as one, with equal notes once."""
        return cls(
            measurements=tuple(one for each in parts for one in each.measurements),
            notes=tuple(dict.fromkeys(one for each in parts for one in each.notes)),
            machines={node: facts for each in parts for node, facts in each.machines.items()},
        )


class ProbeRecord(Record):
    """`probe.json` of a run: all findings of a probe."""

    schema_version: int = SCHEMA_VERSION
    site: str
    role: str
    backend: str
    options: ProbeOptions
    container: str
    """Runtime and image of the measurements; empty if bare."""
    started_at: float
    """Seconds since the epoch."""
    finished_at: float
    nodes: tuple[dict[str, Any], ...]
    """Facts of each node, from `headrace.steps.node_facts`."""
    findings: Findings


class ProbedFolder(Record):
    """A folder whose storage is measured."""

    name: str
    """Name of the tier, or `shared`."""
    folder: str
    """An empty folder there, which the requester removes."""


class ProbeRequest(Record):
    """Request to one process; if ranks meet, with its rank."""

    part: Part
    options: ProbeOptions
    node: str = ""
    """Name of its node; empty if it measures several nodes together."""
    cores: int = 1
    """Number of computing threads."""
    rank: int = 0
    local_rank: int = 0
    ranks_per_node: int = 1
    world_size: int = 1
    meeting: str = ""
    """File by which ranks find each other."""
    host: str = ""
    """Address at which the other nodes reach its node."""
    targets: tuple[ProbedFolder, ...] = ()
    clients: tuple[int, ...] = ()
    """Numbers of processes that use the storage at once."""


def answer_file(request: Path) -> Path:
    """Return the file of the answer to a request."""
    return request.with_suffix(".answer.json")
