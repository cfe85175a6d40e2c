"""Speed-up and efficiency of a suite's trials over their numbers of nodes and ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from statistics import fmean, median

from headrace.files.layout import RunFolder
from headrace.ledger.trial_rows import TrialRecord
from headrace.record import Record
from headrace.steps.history import read_history
from headrace.suites.analysis import varying

_SIZES = ("train.nodes", "train.ranks_per_node")


class Scaling(Record):
    """The rate of all trials of one size, compared with the smallest size."""

    size: dict[str, int]
    """The keys that vary, with their values."""
    samples_per_s: float
    """Mean of the trials' medians, over all ranks."""
    speedup: float
    efficiency: float
    """Speed-up by the ratio of nodes or ranks; 1 is ideal."""


def scaling_of(suite: RunFolder, rows: Sequence[TrialRecord]) -> tuple[Scaling, ...]:
    """Return the scaling of a suite, by size; empty if its trials differ in no number of ranks."""
    keys = [key for key in _SIZES if key in varying(rows)]
    rates: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for row in rows if keys else ():
        size = tuple(number for key in keys if isinstance(number := row.values.get(key), int))
        found = [each.samples_per_s for each in read_history(suite.trial(row.number)).all_rows]
        if len(size) == len(keys) and any(found):
            rates[size].append(median(filter(None, found)))
    ordered = sorted(rates, key=lambda size: (prod(size), size))
    speedups = {size: fmean(rates[size]) / fmean(rates[ordered[0]]) for size in ordered}
    return tuple(
        Scaling(
            size=dict(zip(keys, size, strict=True)),
            samples_per_s=fmean(rates[size]),
            speedup=speedup,
            efficiency=speedup * prod(ordered[0]) / prod(size),
        )
        for size, speedup in speedups.items()
    )
