"""Gathers converted samples into blocks for the shard builder, and counts what went by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.packing import statistics
from headrace.packing.alike import Alike
from headrace.packing.convert import Column, Converter
from headrace.packing.decode import UnreadableError
from headrace.packing.listed import taken
from headrace.packing.looked import Looked
from headrace.packing.packed import ShardTask
from headrace.packing.plan import PlannedShard
from headrace.packing.samples import Content, FileBlock, Values, is_full
from headrace.packing.statistics import Moments
from headrace.shards.columns import Block
from headrace.storage.manifest import LengthStatistics, Quarantined


@dataclass
class Tally:
    """What is known of the samples packed."""

    lengths: dict[str, LengthStatistics] = field(default_factory=dict)
    """Sizes of ragged fields."""
    encodings: dict[str, set[str]] = field(default_factory=dict)
    """Encodings of fields that stay encoded."""
    labels: list[int] = field(default_factory=list)
    """Class index of each sample."""
    quarantined: list[Quarantined] = field(default_factory=list)
    """Samples left out, with reasons."""


class Gatherer:
    """Converts samples until there is a block of them.

    Args:
        task: How fields are kept.
        plan: The samples of the shard.
    """

    def __init__(self, task: ShardTask, plan: PlannedShard) -> None:
        self.tally = Tally()
        self._plan = plan
        self._converters = [(rule.info.name, Converter(rule)) for rule in task.rules]
        self._looked = {
            rule.info.name: Looked(rule.info, plan.every[rule.info.name])
            for rule in task.rules
            if rule.info.name in plan.every
        }
        self._alike = Alike(self._converters[0][1])
        self._start_block()

    @property
    def num_waiting(self) -> int:
        """Samples of the block so far."""
        return len(self._positions)

    def add(self, position: int, values: Values) -> bool:
        """Convert a sample; one that cannot be is left out.

        Args:
            position: Its place in the plan.
            values: Its values.

        Returns:
            Whether the block is full.

        Raises:
            DataError: It has another shape or dtype than the example.
        """
        path = self._plan.paths[position]
        for number, (name, converter) in enumerate(self._converters):
            try:
                converter.add(path, values[name], self._columns[number])
            except UnreadableError as error:
                self._undo(number)
                prefix = f"{name}: " if len(self._converters) > 1 else ""
                self.leave_out(position, f"{prefix}{error}")
                return False
            self._num_bytes += len(self._columns[number].items[-1])
        self._positions.append(position)
        return is_full(self._num_bytes, len(self._positions))

    def take_filled(self, first: int, files: FileBlock) -> bool:
        """As `take_alike`, of files that are read into memory that is used again.

        The block must be written before the next is taken.
        """
        if len(self._converters) > 1 or self.num_waiting:
            return False
        return self._take(first, self._alike.filled(files))

    def take_alike(self, first: int, contents: Sequence[Content]) -> bool:
        """Make whole files the block, when they are arrays that differ in their values only.

        Args:
            first: Place of the first in the plan; the others follow.
            contents: Their bytes.

        Returns:
            Whether they are; else they are to be added one by one.
        """
        if len(self._converters) > 1 or self.num_waiting:
            return False
        return self._take(first, self._alike.column(contents))

    def leave_out(self, position: int, reason: str) -> None:
        """Put a sample into quarantine."""
        path = self._plan.paths[position]
        self.tally.quarantined.append(Quarantined(path=path, reason=reason))

    def block(self) -> Block:
        """The block, taken out."""
        positions, plan = self._positions, self._plan
        columns = [column.items for column in self._columns]
        shapes = {
            name: column.shapes
            for (name, converter), column in zip(self._converters, self._columns, strict=True)
            if converter.rule.info.ndim is not None
        }
        self._count()
        if plan.labels:
            labels = taken(plan.labels, positions)
            self.tally.labels += labels
            content = np.array(labels, dtype="<i8").tobytes()
            columns.append([content[start : start + 8] for start in range(0, len(content), 8)])
        block = Block(
            ids=np.array(positions, dtype=np.int64) + plan.first_sample_id,
            sources=list(map(str.encode, taken(plan.paths, positions))),
            columns=columns,
            shapes=shapes,
            joined=self._columns[0].joined,
        )
        self._start_block()
        return block

    def moments(self) -> dict[str, Moments]:
        """Moments of fixed fields, by name, once all samples went by."""
        found = ((name, looked.moments()) for name, looked in self._looked.items())
        return {name: moments for name, moments in found if moments is not None}

    def _start_block(self) -> None:
        self._positions: list[int] = []
        self._columns = [Column() for _ in self._converters]
        self._num_bytes = 0

    def _take(self, first: int, column: Column | None) -> bool:
        if column is None:
            return False
        self._columns = [column]
        self._positions += range(first, first + len(column.items))
        return True

    def _undo(self, number: int) -> None:
        """Take back the values of a sample in the columns before one."""
        for column in self._columns[:number]:
            self._num_bytes -= len(column.items.pop())
            if column.shapes:
                column.shapes.pop()

    def _count(self) -> None:
        for (name, converter), column in zip(self._converters, self._columns, strict=True):
            info = converter.rule.info
            self.tally.encodings.setdefault(name, set()).update(column.encodings)
            if info.layout == "ragged":
                sizes = np.fromiter(map(len, column.items), dtype=np.int64)
                self._count_lengths(name, sizes)
                continue
            looked = self._looked.get(name)
            if looked is not None and column.items:
                items = column.items if column.joined is None else [column.joined]
                looked.add(items, self._plan.first_sample_id + self._positions[0])

    def _count_lengths(self, name: str, sizes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        found = statistics.lengths(sizes)
        before = self.tally.lengths.get(name)
        self.tally.lengths[name] = (
            statistics.merge_lengths([before, found]) if before is not None else found
        )
