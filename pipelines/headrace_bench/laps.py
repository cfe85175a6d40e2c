"""Laps of reading: batches for a given time, checked in the warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace_bench.contest import Variant, variant
from headrace_bench.peers import Epoch
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

    def variant(self, kind: Kind, settings: str, name: str = "") -> Variant:
        """Return a variant with its laps; `name` as of `contest.variant`."""
        return variant(kind, lambda is_warm_up: read_lap(self, is_warm_up), settings, name)

    def by(self, epoch: Epoch) -> Reader:
        """Return the same work by other passes."""
        return replace(self, epoch=epoch)


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
    """A peer that tries every number of workers in the warm-up and keeps the fastest.

    Args:
        reader: The work.
        epoch_by: Returns the peer's passes with a number of workers.
        choices: Numbers of workers to try.
        settings: How the peer is used.
    """

    def __init__(
        self,
        reader: Reader,
        epoch_by: Callable[[int], Epoch],
        choices: Sequence[int],
        settings: str,
    ) -> None:
        self._reader, self._epoch_by, self._settings = reader, epoch_by, settings
        self._choices, self._chosen = tuple(choices), choices[0]

    def variant(self, name: str) -> Variant:
        """Return it as a variant."""
        return variant("peer", self.lap, self.settings, name)

    def lap(self, is_warm_up: bool) -> Lap:
        """Return a lap; in the warm-up, the best lap of all choices."""
        if not is_warm_up:
            return read_lap(self._reader, is_warm_up=False)
        laps: dict[int, tuple[Lap, Reader]] = {}
        for number in self._choices:
            reader = replace(self._reader, epoch=self._epoch_by(number), skips_start=True)
            laps[number] = read_lap(reader, is_warm_up=not laps), reader
        self._chosen = max(laps, key=lambda number: laps[number][0].bytes_per_s)
        lap, self._reader = laps[self._chosen]
        return lap

    def settings(self) -> str:
        """How the peer is used, with the chosen workers."""
        *most, last = map(str, self._choices)
        workers = f"best of {', '.join(most)} and {last} workers: {self._chosen}"
        return f"{self._settings}; {workers}" if most else self._settings
