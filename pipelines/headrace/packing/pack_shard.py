"""Packs one shard: the function that workers run. The same samples give the same bytes.

A sample is read from its source, converted field by field, collected into a block with its
neighbours, counted, and written with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import overload

import numpy as np

from headrace.errors import StepError
from headrace.files.atomic import read_record, write_text
from headrace.files.machine import told_when_full
from headrace.files.manifest import FieldInfo, LengthStatistics, Quarantined, ShardInfo
from headrace.packing import statistics
from headrace.packing.convert import Converter, FieldColumn
from headrace.packing.fields import FieldRule
from headrace.packing.listed import Listed, taken
from headrace.packing.packed import PackedShard, recorded
from headrace.packing.plan import PlannedShard
from headrace.packing.samples import Access, Fields, Source, Unreadable, UnreadableError, Values
from headrace.packing.sources.folder import FolderSource
from headrace.packing.sources.open import open_source
from headrace.packing.sources.parts import values_of
from headrace.packing.statistics import Moments, SampledMoments
from headrace.packing.target import PackTarget
from headrace.packing.uniform_npy import UniformNpyReader
from headrace.recipe.dataset import DatasetSpec
from headrace.shards.columns import Block, Expected
from headrace.shards.writer import ShardBuilder

_BLOCK_BYTES = 2**20  # what was read is in the processor's cache when it is written
_BLOCK_SAMPLES = 512


@dataclass(frozen=True, kw_only=True)
class PackTask:
    """What a worker is given; it reads the samples' list from the dataset's folder."""

    dataset: DatasetSpec
    """The source, settled."""
    access: Access
    """What the site allows the source."""
    source_fields: Fields
    """Fields that the listing found."""
    rules: tuple[FieldRule, ...]
    """How each is kept."""
    fields: tuple[FieldInfo, ...]
    """Fields of a sample in the shard."""
    target: PackTarget
    """Where the dataset is put."""
    file: str
    """The shard, relative to the dataset's folder."""
    pack_key: str
    """Identity of the whole packing."""


class PackTasks(Sequence[PackTask]):
    """Tasks of shards; workers are busy with the first while the plans of others are written."""

    def __init__(self, pattern: PackTask, shards: Sequence[PlannedShard]) -> None:
        self._pattern = pattern
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    @overload
    def __getitem__(self, index: int) -> PackTask: ...

    @overload
    def __getitem__(self, index: slice) -> PackTasks: ...

    def __getitem__(self, index: int | slice) -> PackTask | PackTasks:
        """A task, once the plan of its shard is on the disk."""
        if isinstance(index, slice):
            return PackTasks(self._pattern, self._shards[index])
        shard, folder = self._shards[index], self._pattern.target.folder
        text = shard.model_dump_json()
        with told_when_full(folder.parts, len(text)):
            write_text(folder.plan_file(shard.file), text)
        return replace(self._pattern, file=shard.file)


def pack_shard(task: PackTask) -> PackedShard:
    """Pack one shard, unless a verified one is there.

    Raises:
        DataError: A source changed since it was listed, or has another shape than the others.
        StorageFullError: The dataset's storage is full; nothing half-written is left.
        StoreError: S3 kept failing.
    """
    target, folder = task.target, task.target.folder
    done = recorded(folder, task.file, task.pack_key)
    if done is not None and (done.shard is None or target.has(done.shard)):
        return done
    plan = read_record(folder.plan_file(task.file), PlannedShard)
    if plan is None:
        raise StepError(f"The plan {folder.plan_file(task.file)} is missing", "Pack again.")
    packed = _pack(task, plan)
    if packed.shard is not None:
        target.send(task.file)
    text = packed.model_dump_json()
    with told_when_full(folder.parts, len(text)):
        write_text(folder.record_file(task.file), text)
    return packed


def _pack(task: PackTask, plan: PlannedShard) -> PackedShard:
    source = open_source(task.dataset, task.access, task.source_fields)
    collector = BlockCollector(task.rules, plan)
    expected = Expected(
        num_samples=plan.num_samples,
        source_bytes=len("".join(plan.paths).encode()),
        first_bytes=sum(plan.sizes),
    )
    path = task.target.folder.path / plan.file
    with ShardBuilder(path, plan.split, task.fields, expected) as builder:
        for block in collector.blocks(source):
            builder.add(block)
        shard = _finished(builder, plan) if len(builder) else None
    encodings = {name: tuple(sorted(met)) for name, met in collector.encodings.items()}
    return PackedShard(
        pack_key=task.pack_key,
        shard=shard,
        statistics=collector.moments(),
        lengths=collector.lengths,
        class_counts=dict(sorted(collector.class_counts.items())),
        encodings=encodings,
        quarantined=tuple(collector.quarantined),
        num_planned=plan.num_samples,
    )


def _finished(builder: ShardBuilder, plan: PlannedShard) -> ShardInfo:
    written = builder.finish()
    return ShardInfo(
        file=plan.file,
        split=plan.split,
        num_samples=len(builder),
        num_bytes=written.num_bytes,
        xxh3_128=written.xxh3_128,
        fold=plan.fold,
    )


class BlockCollector:
    """Collects converted samples until there is a block of them; holds what is known of all."""

    def __init__(self, rules: Sequence[FieldRule], plan: PlannedShard) -> None:
        self.lengths: dict[str, LengthStatistics] = {}
        self.encodings: dict[str, set[str]] = {}
        self.class_counts: Counter[int] = Counter()
        self.quarantined: list[Quarantined] = []
        self._plan = plan
        self._converters = [(rule.info.name, Converter(rule)) for rule in rules]
        self._moments = {
            rule.info.name: SampledMoments(rule.info, plan.every[rule.info.name])
            for rule in rules
            if rule.info.name in plan.every
        }
        self._start_block()

    def blocks(self, source: Source) -> Iterator[Block]:
        """Blocks of the samples that can be read, in order; each must be written before the next.

        Raises:
            DataError: A source changed since it was listed, or has another shape than the others.
            StoreError: S3 kept failing.
        """
        refs = self._plan.samples()
        if isinstance(source, FolderSource) and source.is_of_arrays(refs):
            yield from self._of_files(source, refs)
        else:
            yield from self._of_samples(0, source.read(refs))

    def moments(self) -> dict[str, Moments]:
        """Moments of fixed fields, by name, once all samples went by."""
        found = ((name, sampled.moments()) for name, sampled in self._moments.items())
        return {name: moments for name, moments in found if moments is not None}

    def _of_files(self, source: FolderSource, refs: Listed) -> Iterator[Block]:
        """Blocks of `.npy` files, taken at once where they differ in their values only."""
        uniform = UniformNpyReader(source.folder, self._converters[0][1])
        contents = source.contents(refs) if source.folder is None else None
        for start, stop in _cuts(refs.sizes):
            some = refs[start:stop]
            given = list(islice(contents, len(some))) if contents is not None else None
            column = uniform.read(some) if given is None else uniform.parsed(given)
            if column is None:
                one_by_one = iter(given) if given is not None else source.contents(some)
                yield from self._of_samples(start, values_of(some, one_by_one, source.fields))
            else:
                self._positions += range(start, stop)
                self._columns = [column]
                yield self._block()

    def _of_samples(self, first: int, samples: Iterable[Values | Unreadable]) -> Iterator[Block]:
        """Blocks of samples that are converted one by one, `first` the place of the first."""
        for position, values in enumerate(samples, first):
            if isinstance(values, Unreadable):
                self._leave_out(position, values.reason)
            elif self._add(position, values):
                yield self._block()
        if self._positions:
            yield self._block()

    def _add(self, position: int, values: Values) -> bool:
        """Convert a sample, or leave it out; whether the block is full."""
        path = self._plan.paths[position]
        for number, (name, converter) in enumerate(self._converters):
            try:
                converter.add(path, values[name], self._columns[number])
            except UnreadableError as error:
                self._undo(number)
                prefix = f"{name}: " if len(self._converters) > 1 else ""
                self._leave_out(position, f"{prefix}{error}")
                return False
            self._num_bytes += len(self._columns[number].items[-1])
        self._positions.append(position)
        return self._num_bytes >= _BLOCK_BYTES or len(self._positions) >= _BLOCK_SAMPLES

    def _undo(self, number: int) -> None:
        """Take back the values of a sample in the columns before one."""
        for column in self._columns[:number]:
            self._num_bytes -= len(column.items.pop())
            if column.shapes:
                column.shapes.pop()

    def _leave_out(self, position: int, reason: str) -> None:
        self.quarantined.append(Quarantined(path=self._plan.paths[position], reason=reason))

    def _start_block(self) -> None:
        self._positions: list[int] = []
        self._columns = [FieldColumn() for _ in self._converters]
        self._num_bytes = 0

    def _block(self) -> Block:
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
            self.class_counts.update(labels)
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

    def _count(self) -> None:
        for (name, converter), column in zip(self._converters, self._columns, strict=True):
            self.encodings.setdefault(name, set()).update(column.encodings)
            if converter.rule.info.layout == "ragged":
                found = statistics.lengths(np.fromiter(map(len, column.items), dtype=np.int64))
                before = self.lengths.get(name)
                self.lengths[name] = statistics.merge_lengths([before, found]) if before else found
            elif name in self._moments:
                items = column.items if column.joined is None else [column.joined]
                first = self._plan.first_sample_id + self._positions[0]
                self._moments[name].add(items, first)


def _cuts(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First file, and the one behind the last, of each block of files of so many bytes."""
    ends = np.cumsum(np.array(sizes, dtype=np.int64))
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        full = int(np.searchsorted(ends, before + _BLOCK_BYTES)) + 1
        stop = min(full, start + _BLOCK_SAMPLES, len(sizes))
        yield start, stop
        start = stop
