"""Values of a source to the bytes of a shard: kept as they are, or decoded and brought in shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError, UnreadableError
from headrace.fields.exact import exact
from headrace.fields.field_kind import Decoded, Encoded, Value
from headrace.files.manifest import Quarantined
from headrace.packing.fields import FieldRule, first_rules, with_example
from headrace.packing.sample_table import SampleRef
from headrace.packing.samples import Source, Unreadable, Values
from headrace.recipe.dataset import PackSpec
from headrace.shards.shard_layout import Buffer

NUM_TRIED = 100
"""Samples that are tried; one must be readable, so that shapes and dtypes are known."""

_NUM_SHOWN = 5


@dataclass
class FieldColumn:
    """One field of a block of samples."""

    items: list[Buffer] = field(default_factory=list)
    """Bytes of each sample."""
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    """Its shape, in a ragged field of arrays."""
    encodings: set[str] = field(default_factory=set)
    """Encodings met, of values that stay encoded."""
    changes: list[tuple[str, ...]] = field(default_factory=list)
    """What differs from the file of each sample that was converted by itself."""
    joined: Buffer | None = None
    """The bytes of all samples, where these lie one after the other in memory that is used again
    for the next block."""


class Converter:
    """Converts the values of one field."""

    def __init__(self, rule: FieldRule) -> None:
        self.rule = rule
        self._dtype = np.dtype(rule.info.dtype)

    def add(self, path: str, value: Value, column: FieldColumn) -> None:
        """Convert one value.

        Raises:
            UnreadableError: It is damaged; the column is as before.
            DataError: It has another shape, dtype or rate than the example.
        """
        rule = self.rule
        if not rule.decode:
            encoded = Encoded(*rule.kind.encode(value, rule.info.dtype, check=rule.check))
            column.items.append(encoded.content)
            column.encodings |= {encoded.encoding} - {""}
            column.changes.append(encoded.changes)
            return
        array, rate, changes = self.decoded(value)
        kept_rate = rule.info.sample_rate
        if kept_rate is not None and rate is not None and rate != kept_rate:
            raise DataError(
                f"A sound has {rate:,} samples a second, '{rule.example}' has {kept_rate:,}",
                f"Set pack.fields.{rule.info.name}.sample_rate.",
            )
        if rule.example and not self.fits(array):
            raise self._misfit(path, array)
        column.items.append(as_bytes(array))
        if rule.info.ndim is not None:
            column.shapes.append(array.shape)
        column.changes.append(changes)

    @property
    def is_fixed(self) -> bool:
        """Whether values are numbers of one shape, kept as they are."""
        rule = self.rule
        return (
            rule.info.layout == "fixed"
            and rule.kind.is_plain
            and rule.options.dtype in (None, rule.info.dtype)
        )

    def takes(self, rows: NDArray[Any] | list[Any]) -> NDArray[Any] | None:
        """Return the rows of a column, `(num_rows, *shape)`, in the dtype of the field.

        None if they must be converted one by one.
        """
        if isinstance(rows, list) or rows.shape[1:] != self.rule.info.shape:
            return None
        if rows.dtype == self._dtype or self.rule.options.dtype is None:
            return rows if rows.dtype == self._dtype else None
        try:
            return exact(rows, self._dtype)
        except UnreadableError:
            return None

    def decoded(self, value: Value) -> Decoded:
        """Return the array that a value is kept as."""
        options = self.rule.options
        found = Decoded(*self.rule.kind.to_array(value, options))
        return found._replace(array=exact(found.array, options.dtype or found.array.dtype))

    def fits(self, array: NDArray[Any]) -> bool:
        """Whether an array has the shape and dtype of the example."""
        info = self.rule.info
        ragged = info.layout == "ragged"
        return array.dtype == self._dtype and (
            array.ndim == info.ndim if ragged else array.shape == info.shape
        )

    def _misfit(self, path: str, array: NDArray[Any]) -> DataError:
        info = self.rule.info
        expected = f"{info.ndim} axes" if info.layout == "ragged" else str(info.shape)
        return DataError(
            f"'{path}' has shape {array.shape} {array.dtype}, '{self.rule.example}' has {expected} "
            f"{info.dtype}",
            self._way_out(array),
        )

    def _way_out(self, array: NDArray[Any]) -> str:
        info = self.rule.info
        if array.dtype.name != info.dtype:
            return f"Make all of equal dtype, or set pack.fields.{info.name}.dtype."
        other_axes = array.ndim != (info.ndim or len(info.shape))
        if way := self.rule.kind.way_out(info.name, other_axes=other_axes):
            return way
        if info.layout == "ragged":
            return "Make all of equally many axes."
        return f"Make all of equal shape, or set pack.fields.{info.name}.mixed to 'ragged'."


def field_rules(
    name: str, source: Source, refs: Sequence[SampleRef], pack: PackSpec
) -> tuple[FieldRule, ...]:
    """How each field is kept, shapes taken from the first sample that can be read.

    Returns:
        Rules in the order of the source's fields, but `label` last.
    """
    rules = sorted(first_rules(source.fields, pack), key=lambda rule: rule.info.name == "label")
    bad: list[Quarantined] = []
    for ref in refs[:NUM_TRIED]:
        (values,) = source.read([ref])  # one by one: the first one is mostly all that is needed
        if isinstance(values, Unreadable):
            bad.append(Quarantined(path=ref.path, reason=values.reason))
            continue
        try:
            return tuple(_settled(rule, ref, values) for rule in rules)
        except UnreadableError as error:
            bad.append(Quarantined(path=ref.path, reason=str(error)))
    raise DataError(
        f"None of the first {len(bad)} samples in {name} can be read: {describe(bad)}",
        "Repair or remove these files or rows, name what stands for missing values in "
        "dataset.missing, or narrow dataset.include.",
    )


def describe(quarantined: Sequence[Quarantined]) -> str:
    """The first samples that were left out, with reasons."""
    shown = "; ".join(f"{item.path}: {item.reason}" for item in quarantined[:_NUM_SHOWN])
    more = len(quarantined) - _NUM_SHOWN
    return shown + (f"; and {more:,} more" if more > 0 else "")


def _settled(rule: FieldRule, ref: SampleRef, values: Values) -> FieldRule:
    value = values[rule.info.name]
    converter, column = Converter(rule), FieldColumn()
    converter.add(ref.path, value, column)
    if not rule.decode:
        return with_example(rule, None, ref.path, len(column.items[0]), None)
    num_bytes = len(value) if isinstance(value, bytes) else int(getattr(value, "nbytes", 0))
    array, rate, _ = converter.decoded(value)
    return with_example(rule, array, ref.path, num_bytes, rate)


def as_bytes(array: NDArray[Any]) -> Buffer:
    """Bytes of an array in C order and little-endian; shared with it, where that is so."""
    if not array.size:
        return b""
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8).data
