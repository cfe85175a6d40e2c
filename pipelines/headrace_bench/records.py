"""What a benchmark gives: laps, rows, tables, a report with hardware and versions."""

from __future__ import annotations

import statistics
from typing import Literal

from pydantic import computed_field

from headrace.record import Record

Kind = Literal["limit", "headrace", "peer"]
"""What the machine can do at best, headrace, or another library."""


class Lap(Record):
    """One timed pass of one variant."""

    num_samples: int
    """Samples delivered, packed or copied."""
    num_bytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """Rate in bytes."""
        return self.num_bytes / self.seconds


class BenchRow(Record):
    """All laps of one variant, or why there are none."""

    name: str
    kind: Kind
    is_yardstick: bool = False
    """Whether ratios may be taken of this row: limits, and headrace as users get it."""
    settings: str = ""
    """How it was used."""
    laps: tuple[Lap, ...] = ()
    problem: str = ""
    """Why there are no laps, and what to do; else empty."""

    @property
    def best(self) -> Lap | None:
        """The fastest lap."""
        return max(self.laps, key=lambda lap: lap.bytes_per_s, default=None)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gb_per_s(self) -> float | None:
        """Rate of the best lap, 10^9 bytes a second."""
        return self.best.bytes_per_s / 1e9 if self.best else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def median_gb_per_s(self) -> float | None:
        """Rate of the median lap, 10^9 bytes a second."""
        rates = [lap.bytes_per_s for lap in self.laps]
        return statistics.median(rates) / 1e9 if rates else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def samples_per_s(self) -> float | None:
        """Samples a second in the best lap."""
        return self.best.num_samples / self.best.seconds if self.best else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def spread(self) -> float | None:
        """How far the slowest lap is below the best, as a share of the best."""
        if self.best is None:
            return None
        return 1 - min(lap.bytes_per_s for lap in self.laps) / self.best.bytes_per_s


class BenchTable(Record):
    """Variants that did the same work, in one run."""

    title: str
    rows: tuple[BenchRow, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know to judge the figures."""

    def yardstick(self, kind: Kind) -> BenchRow | None:
        """The fastest row that stands for its kind; None when there are no figures."""
        rows = [row for row in self.rows if row.kind == kind and row.is_yardstick and row.laps]
        return max(rows, key=lambda row: row.gb_per_s or 0.0, default=None)

    def ratio(self, row: BenchRow, kind: Kind) -> float | None:
        """Rate of a row over that of the yardstick of a kind; None when one has no figures."""
        other = self.yardstick(kind)
        if row.best is None or other is None or other.best is None:
            return None
        return row.best.bytes_per_s / other.best.bytes_per_s

    @computed_field  # type: ignore[prop-decorator]
    @property
    def of_limit(self) -> dict[str, float]:
        """Rate of each row as a share of the limit."""
        found = {row.name: self.ratio(row, "limit") for row in self.rows}
        return {name: ratio for name, ratio in found.items() if ratio is not None}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def headrace_over(self) -> dict[str, float]:
        """How many times faster headrace is than each peer."""
        found = {row.name: self.ratio(row, "headrace") for row in self.rows if row.kind == "peer"}
        return {name: 1 / ratio for name, ratio in found.items() if ratio}


class BenchMachine(Record):
    """Where a benchmark ran."""

    cpu: str
    num_cores: int
    """Cores that this process may use."""
    memory_bytes: int
    system: str
    versions: dict[str, str]
    """Versions of Python and of the packages that took part."""


class BenchReport(Record):
    """A whole benchmark."""

    command: str
    """Command that repeats it."""
    date: str
    """When it began, UTC."""
    machine: BenchMachine
    load_before: float
    """Processes that were running or ready when it began: load average over one minute."""
    load_after: float
    """The same at the end; the benchmark itself is in it."""
    seconds: float
    """Of the whole run, making the data included."""
    tables: tuple[BenchTable, ...]
    """One table for each kind of work and size of sample."""
    warnings: tuple[str, ...] = ()
    """Why the figures may be worse than the machine allows."""
