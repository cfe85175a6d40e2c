"""Samples of a shard as blocks: one by one, or files of arrays many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.packing.blocks import Gatherer
from headrace.packing.samples import (
    FileBlock,
    FileSource,
    SampleRef,
    Source,
    SourceField,
    Unreadable,
    Values,
)
from headrace.packing.sources.contents import values_of
from headrace.shards.columns import Block


def blocks_of(source: Source, refs: Sequence[SampleRef], gatherer: Gatherer) -> Iterator[Block]:
    """Blocks of the samples that can be read, in order.

    Raises:
        DataError: A source changed since it was listed, or has another shape than the others.
        StoreError: S3 kept failing.
    """
    arrays = [field.kind for field in source.fields] == ["array"]
    files = source.blocks(refs) if arrays and isinstance(source, FileSource) else None
    if files is None:
        yield from _one_by_one(enumerate(source.read(refs)), gatherer)
    else:
        yield from _whole_files(files, refs, source.fields[0], gatherer)
    if gatherer.num_waiting:
        yield gatherer.block()


def _whole_files(
    files: Iterator[FileBlock],
    refs: Sequence[SampleRef],
    field: SourceField,
    gatherer: Gatherer,
) -> Iterator[Block]:
    """Files of arrays, many at once where they differ in their values only."""
    first = 0
    for some in files:
        end = first + len(some.sizes)
        if not gatherer.take_filled(first, some):
            contents = some.contents()
            if not gatherer.take_alike(first, contents):
                values = values_of(refs[first:end], iter(contents), field)
                yield from _one_by_one(enumerate(values, first), gatherer)
        if gatherer.num_waiting:
            yield gatherer.block()
        first = end


def _one_by_one(
    samples: Iterable[tuple[int, Values | Unreadable]], gatherer: Gatherer
) -> Iterator[Block]:
    for position, values in samples:
        if isinstance(values, Unreadable):
            gatherer.leave_out(position, values.reason)
        elif gatherer.add(position, values):
            yield gatherer.block()
