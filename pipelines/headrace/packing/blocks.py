"""Samples of a shard to blocks of bytes: one by one, or many uniform `.npy` files at once.

Of files that differ in their values only, one call puts the header beside those of the others, and
the body behind the others', so that all are compared, hashed and written at once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import UnreadableError
from headrace.fields.array import plain_header
from headrace.files.manifest import LengthStatistics, Quarantined
from headrace.packing import statistics
from headrace.packing.fields import FieldColumn, FieldRule, as_bytes
from headrace.packing.packing_plan import PlannedShard
from headrace.packing.sample_table import SampleTable
from headrace.packing.samples import Source, Unreadable, Values
from headrace.packing.sources.folder import FolderSource
from headrace.packing.sources.row_container import ColumnOfRows
from headrace.packing.sources.rows import RowSource, samples_of
from headrace.packing.statistics import Moments, SampledMoments
from headrace.shards.columns import Block
from headrace.shards.shard_layout import Buffer

_BLOCK_BYTES = 2**20  # what was read is in the processor's cache when it is written
_BLOCK_SAMPLES = 512

_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_BEGINNING_BYTES = 4096  # headers are smaller
_MAX_BODY_BYTES = 64 * 2**20


class BlockCollector:
    """Collects converted samples until there is a block of them; holds what is known of all."""

    def __init__(self, rules: Sequence[FieldRule], plan: PlannedShard) -> None:
        self.lengths: dict[str, LengthStatistics] = {}
        self.encodings: dict[str, set[str]] = {}
        self.changes: dict[str, Counter[str]] = {}
        self.class_counts: Counter[int] = Counter()
        self.quarantined: list[Quarantined] = []
        self._plan = plan
        self._rules = {rule.info.name: rule for rule in rules}
        self._moments = {
            rule.info.name: SampledMoments(rule.info, plan.every[rule.info.name])
            for rule in rules
            if rule.info.name in plan.every
        }
        fixed = all(rule.is_fixed for rule in rules)
        self._row_bytes = sum(rule.fixed_bytes for rule in rules) if fixed else 0
        self._start_block()

    def blocks(self, source: Source) -> Iterator[Block]:
        """Blocks of the samples that can be read; each must be written before the next."""
        refs = self._plan.samples
        if isinstance(source, FolderSource) and source.is_of_arrays(refs):
            yield from self._of_files(source, refs)
        elif isinstance(source, RowSource) and self._row_bytes:
            yield from self._of_rows(source, refs)
        else:
            yield from self._of_samples(0, source.read(refs))

    def moments(self) -> dict[str, Moments]:
        """Moments of fixed fields, by name, once all samples went by."""
        found = ((name, sampled.moments()) for name, sampled in self._moments.items())
        return {name: moments for name, moments in found if moments is not None}

    def _of_files(self, source: FolderSource, refs: SampleTable) -> Iterator[Block]:
        """Blocks of `.npy` files, taken at once where they differ in their values only."""
        folder, one_by_one = source.folder, source.read(refs)
        uniform = UniformNpyReader(folder, *self._rules.values()) if folder else None
        for start, stop in _cuts(refs.numbers("bytes")):
            some = refs[start:stop]
            column = uniform.read(some) if uniform else None
            if column is None:
                values = source.read(some) if uniform else islice(one_by_one, len(some))
                yield from self._of_samples(start, values)
            else:
                self._positions += range(start, stop)
                self._columns = [column]
                yield self._block()

    def _of_rows(self, source: RowSource, refs: SampleTable) -> Iterator[Block]:
        """Blocks of rows by column, where a column can be taken at once; else of their samples."""
        for start, stop, columns in source.read_columns(refs):
            found = {
                name: replace(columns[name], values=values)
                for name, rule in self._rules.items()
                if (values := rule.takes(columns[name].values)) is not None
            }
            if len(found) < len(self._rules):
                yield from self._full(start, samples_of(refs[start:stop].iter_paths(), columns))
            else:
                yield from self._of_columns(start, stop, {name: found[name] for name in columns})
        if self._positions:
            yield self._block()

    def _of_columns(
        self, start: int, stop: int, columns: Mapping[str, ColumnOfRows]
    ) -> Iterator[Block]:
        """Blocks of whole columns, cut as those of samples are."""
        why: dict[int, str] = {}
        for name, column in columns.items():
            for row, reason in column.wrong.items():
                why.setdefault(row, f"{name}: {reason}")
        for row, reason in sorted(why.items()):
            self._leave_out(start + row, reason)
        kept = np.delete(np.arange(stop - start), list(why))
        rows = [np.asarray(columns[name].values) for name in self._rules]
        if why:
            rows = [each[kept] for each in rows]
        full = min(_BLOCK_SAMPLES, -(-_BLOCK_BYTES // self._row_bytes))
        at = 0
        while at < len(kept):
            end = min(at + full - len(self._positions), len(kept))
            if end - at == full:
                self._columns = [FieldColumn(joined=as_bytes(each[at:end])) for each in rows]
            else:  # the beginning or the rest of a block
                for field, each in zip(self._columns, rows, strict=True):
                    field.items += [as_bytes(row) for row in each[at:end]]
            self._positions += (kept[at:end] + start).tolist()
            if len(self._positions) == full:
                yield self._block()
            else:
                self._num_bytes = len(self._positions) * self._row_bytes
            at = end

    def _of_samples(self, first: int, samples: Iterable[Values | Unreadable]) -> Iterator[Block]:
        yield from self._full(first, samples)
        if self._positions:
            yield self._block()

    def _full(self, first: int, samples: Iterable[Values | Unreadable]) -> Iterator[Block]:
        paths = self._plan.samples[first:].iter_paths()
        for position, (values, path) in enumerate(zip(samples, paths, strict=False), first):
            if isinstance(values, Unreadable):
                self._leave_out(position, values.reason)
            elif self._add(position, path, values):
                yield self._block()

    def _add(self, position: int, path: str, values: Values) -> bool:
        """Convert a sample, or leave it out; whether the block is full."""
        for number, (name, rule) in enumerate(self._rules.items()):
            try:
                rule.add(path, values[name], self._columns[number])
            except UnreadableError as error:
                self._undo(number)
                prefix = f"{name}: " if len(self._rules) > 1 else ""
                self._leave_out(position, f"{prefix}{error}")
                return False
            self._num_bytes += len(self._columns[number].items[-1])
        self._positions.append(position)
        return self._num_bytes >= _BLOCK_BYTES or len(self._positions) >= _BLOCK_SAMPLES

    def _undo(self, number: int) -> None:
        for column in self._columns[:number]:
            self._num_bytes -= len(column.items.pop())
            if column.shapes:
                column.shapes.pop()
            column.changes.pop()

    def _leave_out(self, position: int, reason: str) -> None:
        self.quarantined.append(Quarantined(path=self._plan.samples[position].path, reason=reason))

    def _start_block(self) -> None:
        self._positions: list[int] = []
        self._columns = [FieldColumn() for _ in self._rules]
        self._num_bytes = 0

    def _block(self) -> Block:
        positions, plan = self._positions, self._plan
        columns: list[Sequence[Buffer]] = [column.items for column in self._columns]
        joined: list[Buffer | None] = [column.joined for column in self._columns]
        shapes = {
            name: column.shapes
            for (name, rule), column in zip(self._rules.items(), self._columns, strict=True)
            if rule.info.ndim is not None
        }
        self._count()
        first, stop = positions[0], positions[-1] + 1
        is_whole = stop - first == len(positions)  # slices copy nothing
        samples = plan.samples[first:stop] if is_whole else plan.samples.take(np.array(positions))
        paths = samples.paths.cast("large_binary")
        labels = samples.numbers("class_index")
        if len(labels):
            self.class_counts.update(labels.tolist())
            content = labels.astype("<i8").tobytes()
            joined.append(content)
            columns.append([content[start : start + 8] for start in range(0, len(content), 8)])
        block = Block(
            ids=np.array(positions, dtype=np.int64) + plan.first_sample_id,
            sources=paths.to_numpy(zero_copy_only=False).tolist(),
            columns=columns,
            shapes=shapes,
            joined=joined,
        )
        self._start_block()
        return block

    def _count(self) -> None:
        for (name, rule), column in zip(self._rules.items(), self._columns, strict=True):
            self.encodings.setdefault(name, set()).update(column.encodings)
            self.changes.setdefault(name, Counter()).update(chain(*column.changes))
            if rule.info.layout == "ragged":
                found = statistics.lengths(np.fromiter(map(len, column.items), dtype=np.int64))
                before = self.lengths.get(name)
                self.lengths[name] = statistics.merge_lengths([before, found]) if before else found
            elif name in self._moments:
                items = column.items if column.joined is None else [column.joined]
                first = self._plan.first_sample_id + self._positions[0]
                self._moments[name].add(items, first)


def _cuts(sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """First file, and the one behind the last, of each block of files of so many bytes."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        full = int(np.searchsorted(ends, before + _BLOCK_BYTES)) + 1
        stop = min(full, start + _BLOCK_SAMPLES, len(sizes))
        yield start, stop
        start = stop


class UniformNpyReader:
    """Takes the arrays of whole files at once; `None` says that they must be read one by one."""

    def __init__(self, folder: Path, rule: FieldRule) -> None:
        self.folder = folder
        self._rule = rule
        self._header = b""
        self._num_bytes = 0
        self._shapes: list[tuple[int, ...]] = []
        self._slots = FileSlots(b"", 0, 0)

    def read(self, files: SampleTable) -> FieldColumn | None:
        """The arrays of files of the folder, in memory that is used again for the next ones.

        None if they are not uniform, or not as they were listed.
        """
        num_files, sizes, paths = len(files), files.numbers("bytes"), list(files.iter_paths())
        num_bytes = int(sizes[0])
        if (sizes != num_bytes).any():
            return None
        if num_bytes != self._num_bytes and not self._learn(self._beginning(paths[0]), num_bytes):
            return None
        body_bytes = num_bytes - len(self._header)
        if not 0 < body_bytes <= _MAX_BODY_BYTES:
            return None
        if self._slots.file_bytes != num_bytes or self._slots.num_files < num_files:
            self._slots = FileSlots(self._header, body_bytes, num_files)
        if not self._slots.read(self.folder, paths, files.numbers("version").tolist()):
            self._num_bytes = 0  # the next files may be like another one
            return None
        return FieldColumn(
            items=[*self._slots.bodies[:num_files]],
            shapes=self._shapes * num_files,
            joined=self._slots.joined[: num_files * body_bytes],
        )

    def _beginning(self, path: str) -> bytes:
        try:
            with open(f"{self.folder}/{path}", "rb", buffering=0) as file:
                return file.read(_BEGINNING_BYTES)
        except OSError:
            return b""

    def _learn(self, beginning: bytes, num_bytes: int) -> bool:
        """Learn the header of a file; whether it may speak for others."""
        self._num_bytes, self._slots = 0, FileSlots(b"", 0, 0)
        plain = plain_header(beginning, num_bytes)
        if plain is None or not self._rule.fits(plain[1]):
            return False
        (self._header, array), self._num_bytes = plain, num_bytes
        self._shapes = [array.shape] if self._rule.info.ndim is not None else []
        return True


class FileSlots:
    """Room for some files of one size."""

    def __init__(self, header: bytes, body_bytes: int, num_files: int) -> None:
        self.num_files = num_files
        self.file_bytes = len(header) + body_bytes
        self._header = np.frombuffer(header, dtype=np.uint8)
        self._headers = np.empty((num_files, len(header)), dtype=np.uint8)
        self.joined = np.empty(num_files * body_bytes, dtype=np.uint8).data
        """What lies behind the headers, one after the other, until more files are read."""
        starts = (number * body_bytes for number in range(num_files))
        self.bodies = [self.joined[start : start + body_bytes] for start in starts]
        more = memoryview(bytearray(1))  # a file that grew has a byte for it
        rows = [row.data for row in self._headers]
        self._rooms = [[row, body, more] for row, body in zip(rows, self.bodies, strict=True)]

    def read(self, folder: Path, paths: Sequence[str], times_ns: Sequence[int]) -> bool:
        """Whether each file, read whole, has its time and size, and begins with the header.

        There is one open, fstat, read and close for each.
        """
        fstat, readv, close, size = os.fstat, os.readv, os.close, self.file_bytes
        within = os.open(folder, _FLAGS)
        try:
            for path, time_ns, room in zip(paths, times_ns, self._rooms, strict=False):
                handle = os.open(path, _FLAGS, dir_fd=within)
                try:
                    if fstat(handle).st_mtime_ns != time_ns or readv(handle, room) != size:
                        return False
                finally:
                    close(handle)
        except OSError:
            return False
        finally:
            close(within)
        return bool((self._headers[: len(paths)] == self._header).all())
