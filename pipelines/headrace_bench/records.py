"""Results of a benchmark: laps, rows, tables, a report with hardware and versions."""

from __future__ import annotations

import statistics
from typing import Literal

from pydantic import computed_field

from headrace.record import Figures, Record

Kind = Literal["limit", "headrace", "peer"]
"""The best that the machine can do, headrace, or another library."""


class Lap(Record):
    """One timed pass of one variant."""

    num_samples: int
    """Samples delivered, packed or copied."""
    num_bytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """Rate in bytes per second."""
        return self.num_bytes / self.seconds


class BenchRow(Record):
    """All laps of one variant, or why there are none."""

    name: str
    kind: Kind
    is_yardstick: bool = False
    """Whether ratios may refer to this row: limits, and headrace with its defaults."""
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
        """Rate of the best lap, 10^9 bytes per second."""
        return self.best.bytes_per_s / 1e9 if self.best else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def median_gb_per_s(self) -> float | None:
        """Rate of the median lap, 10^9 bytes per second."""
        rates = [lap.bytes_per_s for lap in self.laps]
        return statistics.median(rates) / 1e9 if rates else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def samples_per_s(self) -> float | None:
        """Samples per second in the best lap."""
        return self.best.num_samples / self.best.seconds if self.best else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def spread(self) -> float | None:
        """Relative difference between the slowest and the best lap."""
        if self.best is None:
            return None
        return 1 - min(lap.bytes_per_s for lap in self.laps) / self.best.bytes_per_s


class BenchTable(Record):
    """Variants that did the same work, in one run."""

    title: str
    rows: tuple[BenchRow, ...]
    notes: tuple[str, ...] = ()
    """Notes for judging the figures."""

    def yardstick(self, kind: Kind) -> BenchRow | None:
        """Return the fastest row that represents its kind; None without figures."""
        rows = [row for row in self.rows if row.kind == kind and row.is_yardstick and row.laps]
        return max(rows, key=lambda row: row.gb_per_s or 0.0, default=None)

    def ratio(self, row: BenchRow, kind: Kind) -> float | None:
        """Return a row's rate relative to the yardstick of a kind; None without figures."""
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
        """Speed of headrace relative to each peer."""
        found = {row.name: self.ratio(row, "headrace") for row in self.rows if row.kind == "peer"}
        return {name: 1 / ratio for name, ratio in found.items() if ratio}


class BenchMachine(Record):
    """The machine of a benchmark."""

    cpu: str
    num_cores: int
    """Cores that this process may use."""
    memory_bytes: int
    system: str
    versions: dict[str, str]
    """Versions of Python and of the compared packages."""


class MachineReport(Figures):
    """What was measured, when and where."""

    command: str
    """Command that repeats it."""
    date: str
    """Start, UTC."""
    machine: BenchMachine
    seconds: float
    """Seconds of the whole run, with the creation of the data."""


class BenchReport(MachineReport):
    """A whole benchmark."""

    load_before: float
    """Load average over one minute at the start."""
    load_after: float
    """The same at the end; it includes the benchmark itself."""
    tables: tuple[BenchTable, ...]
    """One table for each kind of work and sample size."""
    warnings: tuple[str, ...] = ()
    """Reasons why the figures may be too low."""
