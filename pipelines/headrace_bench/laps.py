"""Laps of reading: batches for a given time, checked in the warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_bench.contest import Variant
from headrace_bench.peers.peer import Epoch
from headrace_bench.records import Kind, Lap

Check = Callable[[Tensor, Tensor], bool]
"""Whether samples `(batch, …)` equal the written samples of these numbers `(batch,)`."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One way to read, with all parameters of a lap."""

    epoch: Epoch
    lap_s: float
    num_samples: int
    """Samples that an epoch must deliver at least, each once."""
    check: Check
    skips_start: bool = False
    """Exclude the first batch of an epoch and the time until then: peers start workers."""


def read_lap(reader: Reader, is_warm_up: bool) -> Lap:
    """Read whole epochs, or the part of one that fits the time.

    Raises:
        ValueError: The warm-up delivered wrong samples.
    """
    if is_warm_up:
        check_epoch(reader)
    total = Lap(num_samples=0, num_bytes=0, seconds=0.0)
    while total.seconds < reader.lap_s:
        part = _epoch_lap(reader, reader.lap_s - total.seconds)
        total = Lap(
            num_samples=total.num_samples + part.num_samples,
            num_bytes=total.num_bytes + part.num_bytes,
            seconds=total.seconds + part.seconds,
        )
    return total


def reading(
    name: str, kind: Kind, reader: Reader, settings: str, *, is_yardstick: bool = True
) -> Variant:
    """Return a variant with the laps of a reader."""
    return Variant(
        name=name,
        kind=kind,
        is_yardstick=is_yardstick,
        lap=lambda is_warm_up: read_lap(reader, is_warm_up),
        settings=settings,
    )


def check_epoch(reader: Reader) -> None:
    """Read one epoch and check every sample.

    Raises:
        ValueError: Samples are missing, duplicate, or differ from the written ones.
    """
    numbers: list[Tensor] = []
    for batch, these in reader.epoch():
        if not reader.check(batch, these):
            raise ValueError("a batch does not hold what was written")
        numbers.append(these.clone())
    delivered = torch.cat(numbers) if numbers else torch.empty(0)
    if len(delivered) < reader.num_samples or len(set(delivered.tolist())) != len(delivered):
        raise ValueError(f"{len(delivered)} samples came, {reader.num_samples} were written")


def _epoch_lap(reader: Reader, at_most_s: float) -> Lap:
    """Read one epoch, cut when the time is over."""
    began = time.perf_counter()
    batches = reader.epoch()
    if reader.skips_start:
        next(batches)
        began = time.perf_counter()
    num_samples = num_bytes = 0
    end = began
    while end - began < at_most_s:
        pair = next(batches, None)
        if pair is None:
            break
        end = time.perf_counter()
        num_samples += len(pair[0])
        num_bytes += pair[0].nbytes
    return Lap(num_samples=num_samples, num_bytes=num_bytes, seconds=max(end - began, 1e-9))


class Tuned:
    """Tries every number of workers in the warm-up and keeps the fastest.

    Args:
        workers: Numbers of workers to try.
        make: Opens a reader with a number of workers.
        settings: How the peer is used.
    """

    def __init__(
        self, workers: Sequence[int], make: Callable[[int], Reader], settings: str
    ) -> None:
        self._choices = tuple(workers)
        self._make = make
        self._settings = settings
        self._reader: Reader | None = None
        self._num_workers = self._choices[0]

    def lap(self, is_warm_up: bool) -> Lap:
        """Return a lap; in the warm-up, the best lap of all choices."""
        if self._reader is None or is_warm_up:
            return self._choose()
        return read_lap(self._reader, is_warm_up=False)

    def settings(self) -> str:
        """How the peer is used, with the chosen workers."""
        *most, last = map(str, self._choices)
        workers = f"best of {', '.join(most)} and {last} workers: {self._num_workers}"
        return f"{self._settings}; {workers}" if len(self._choices) > 1 else self._settings

    def _choose(self) -> Lap:
        best: Lap | None = None
        for num_workers in self._choices:
            reader = self._make(num_workers)
            lap = read_lap(reader, is_warm_up=best is None)
            if best is None or lap.bytes_per_s > best.bytes_per_s:
                best, self._reader, self._num_workers = lap, reader, num_workers
        if best is None:
            raise ValueError("no number of workers to try")
        return best
