"""Samples of a shard as blocks: one by one, or files of arrays many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.packing.blocks import Gatherer, is_full
from headrace.packing.samples import FileSource, SampleRef, Source, Unreadable, Values
from headrace.packing.sources.contents import values_of
from headrace.shards.columns import Block


def blocks_of(source: Source, refs: Sequence[SampleRef], gatherer: Gatherer) -> Iterator[Block]:
    """Blocks of the samples that can be read, in order.

    Raises:
        DataError: A source changed since it was listed, or has another shape than the others.
        StoreError: S3 kept failing.
    """
    arrays = [field.kind for field in source.fields] == ["array"]
    contents = source.contents(refs) if arrays and isinstance(source, FileSource) else None
    if contents is None:
        yield from _one_by_one(enumerate(source.read(refs)), gatherer)
    else:
        for first, batch in _batches(contents):
            if not gatherer.take_alike(first, batch):
                values = values_of(refs[first : first + len(batch)], iter(batch), source.fields[0])
                yield from _one_by_one(enumerate(values, first), gatherer)
            if gatherer.num_waiting:
                yield gatherer.block()
    if gatherer.num_waiting:
        yield gatherer.block()


def _one_by_one(
    samples: Iterable[tuple[int, Values | Unreadable]], gatherer: Gatherer
) -> Iterator[Block]:
    for position, values in samples:
        if isinstance(values, Unreadable):
            gatherer.leave_out(position, values.reason)
        elif gatherer.add(position, values):
            yield gatherer.block()


def _batches(
    contents: Iterator[bytes | Unreadable],
) -> Iterator[tuple[int, list[bytes | Unreadable]]]:
    """As many files as make a block, with the number of the first."""
    first, num_bytes = 0, 0
    batch: list[bytes | Unreadable] = []
    for content in contents:
        batch.append(content)
        num_bytes += len(content) if isinstance(content, bytes) else 0
        if is_full(num_bytes, len(batch)):
            yield first, batch
            first, num_bytes, batch = first + len(batch), 0, []
    if batch:
        yield first, batch
