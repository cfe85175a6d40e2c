"""Runs variants of the same work alternately, so that all of them have the same conditions."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_bench.records import BenchRow, Kind, Lap

if TYPE_CHECKING:  # it imports torch
    from headrace_bench.peers import Loader

Tick = Callable[[str], None]
"""Called with the current activity, before each lap."""


def for_each(sizes: Sequence[int], tick: Tick) -> Iterator[tuple[int, Tick]]:
    """Yield sizes of samples, each with a tick that also names the size."""
    for number, size in enumerate(sizes, 1):
        title = f"samples of {size:,} bytes ({number} of {len(sizes)})"
        yield size, lambda text, title=title: tick(f"{title}: {text}")  # type: ignore[misc]


FAULTS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""Errors of other libraries that do not work here; the error goes into their row."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What to measure, and how often."""

    sizes: tuple[int, ...] = ()
    """Bytes of a sample; one table per size."""
    total_bytes: int
    """Bytes of all samples of a table, about."""
    rounds: int
    """Laps that count, of each variant."""
    lap_s: float = 0.25
    """Least time of a lap of reading, seconds."""
    folder: Path
    """Folder for files."""
    peers: tuple[Loader, ...] = ()
    """Libraries to compare with; if not empty, programs such as rsync are compared, too."""


SLOW_S = 2.0
"""A peer whose lap takes longer is not run again."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to do the work."""

    name: str
    """Unique in the contest."""
    kind: Kind
    lap: Callable[[bool], Lap]
    """Does the work once. True requests a warm-up: it checks the results, and its time does not
    count."""
    is_yardstick: bool = False
    """Whether ratios of its kind refer to this one."""
    settings: str | Callable[[], str] = ""
    """How it is used; a function if that is chosen in the laps, called after all of them."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Work whose result goes into a folder, which is removed again after the measured time."""

    target: Path
    """The folder; the work finds it empty."""
    num_samples: int
    num_bytes: int

    def variant(
        self,
        kind: Kind,
        work: Callable[[Path], object],
        check: Callable[[Path], object] = lambda _: None,
        *,
        settings: str = "",
        name: str = "",
    ) -> Variant:
        """Return a variant, whose results are checked in the warm-up; `name` as of `variant`."""

        def lap(is_warm_up: bool) -> Lap:
            shutil.rmtree(self.target, ignore_errors=True)
            self.target.mkdir(parents=True)
            began = time.perf_counter()
            work(self.target)
            seconds = time.perf_counter() - began
            if is_warm_up:
                check(self.target)
            shutil.rmtree(self.target)
            return Lap(num_samples=self.num_samples, num_bytes=self.num_bytes, seconds=seconds)

        return variant(kind, lap, settings, name)


def variant(
    kind: Kind, lap: Callable[[bool], Lap], settings: str | Callable[[], str] = "", name: str = ""
) -> Variant:
    """Return a variant; without a `name` it is the yardstick of its kind."""
    return Variant(name=name or kind, kind=kind, is_yardstick=not name, lap=lap, settings=settings)


def compete(variants: Sequence[Variant], rounds: int, tick: Tick) -> tuple[BenchRow, ...]:
    """Run a warm-up round, then `rounds` that count; in each, all variants one after another.

    A peer that fails gets a row with the reason; any other failure is raised. A peer that took
    longer than `SLOW_S` in the first round is left out of the others.
    """
    laps: dict[str, list[Lap]] = {variant.name: [] for variant in variants}
    problems: dict[str, str] = {}
    slow: set[str] = set()
    for number in range(rounds + 1):
        for variant in variants:
            if variant.name in problems or variant.name in slow:
                continue
            tick(f"{variant.name}, {f'round {number} of {rounds}' if number else 'warm-up'}")
            began = time.perf_counter()
            try:
                lap = variant.lap(number == 0)
            except FAULTS as error:
                if variant.kind != "peer":
                    raise
                problems[variant.name] = failure(error)
            else:
                laps[variant.name] += [lap] if number else []
                if number and variant.kind == "peer" and time.perf_counter() - began > SLOW_S:
                    slow.add(variant.name)
    return tuple(_row(each, laps[each.name], problems.get(each.name, "")) for each in variants)


def failure(error: BaseException) -> str:
    """Return the problem of a peer that raised, in one line."""
    text = " ".join(str(error).split())
    return f"failed here: {type(error).__name__}: {text[:200]}"


def missing_row(peer: Loader, problem: str) -> BenchRow:
    """Return the row of a peer that cannot take part."""
    return BenchRow(name=peer.name, kind="peer", settings=peer.settings, problem=problem)


def _row(variant: Variant, laps: Sequence[Lap], problem: str) -> BenchRow:
    how = variant.settings
    return BenchRow(
        name=variant.name,
        kind=variant.kind,
        is_yardstick=variant.is_yardstick,
        settings=how if isinstance(how, str) else how(),
        laps=() if problem else tuple(laps),
        problem=problem,
    )
