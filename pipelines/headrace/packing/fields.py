"""How each field of a source is kept in the shards: rules, from the recipe and one example.

A rule brings values of a source to the bytes of a shard: as they are, or decoded and in shape.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError, RecipeError, UnreadableError, nearest
from headrace.fields.exact import exact
from headrace.fields.field_kind import (
    Decoded,
    Encoded,
    Kind,
    Value,
    kind_named,
    kinds_with,
    options_of_kinds,
)
from headrace.files.manifest import FieldInfo, Quarantined
from headrace.packing.sample_table import SampleTable
from headrace.packing.samples import Source, SourceField, Unreadable
from headrace.recipe.dataset import PackField, PackSpec

if TYPE_CHECKING:
    from headrace.shards.shard_layout import Buffer  # importing h5py takes half a second

NUM_TRIED = 100
"""Samples that are tried; one must be readable, so that shapes and dtypes are known."""

_CHUNK_BYTES = 4 * 2**10
_MAX_CHUNK_BYTES = 16 * 2**20
_NUM_SHOWN = 5
_DEFAULT = PackField()


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


@dataclass(frozen=True, kw_only=True)
class FieldRule:
    """How one field is kept."""

    info: FieldInfo
    """The field in the shards; dtype and shape from the example."""
    kind: Kind
    decode: bool = False
    check: bool = False
    """Whether values that stay encoded are decoded once, to be sure that they can be."""
    options: PackField = field(default_factory=PackField)
    example: str = ""
    """Sample that shape and dtype were taken from."""
    example_bytes: int = 0
    """Bytes of its value in the shard."""
    growth: float = 1.0
    """Bytes in the shard by byte in the source."""

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements in the shards."""
        return np.dtype(self.info.dtype)

    @property
    def fixed_bytes(self) -> int:
        """Bytes that every sample takes in a shard, besides those that vary."""
        if self.info.layout == "fixed":
            return math.prod(self.info.shape) * self.dtype.itemsize
        return 8 + 8 * (self.info.ndim or 0)

    @property
    def is_fixed(self) -> bool:
        """Whether values are numbers of one shape, kept as they are."""
        return (
            self.info.layout == "fixed"
            and self.kind.is_plain
            and self.options.dtype in (None, self.info.dtype)
        )

    def add(self, path: str, value: Value, column: FieldColumn) -> None:
        """Convert one value.

        Raises:
            UnreadableError: It is damaged; the column is as before.
            DataError: It has another shape, dtype or rate than the example.
        """
        if not self.decode:
            encoded = Encoded(*self.kind.encode(value, self.info.dtype, check=self.check))
            column.items.append(encoded.content)
            column.encodings |= {encoded.encoding} - {""}
            column.changes.append(encoded.changes)
            return
        array, rate, changes = self.decoded(value)
        kept_rate = self.info.sample_rate
        if kept_rate is not None and rate is not None and rate != kept_rate:
            raise DataError(
                f"A sound has {rate:,} samples a second, '{self.example}' has {kept_rate:,}",
                f"Set pack.fields.{self.info.name}.sample_rate.",
            )
        if self.example and not self.fits(array):
            raise self._misfit(path, array)
        column.items.append(as_bytes(array))
        if self.info.ndim is not None:
            column.shapes.append(array.shape)
        column.changes.append(changes)

    def takes(self, rows: NDArray[Any] | list[Any]) -> NDArray[Any] | None:
        """Return the rows of a column, `(num_rows, *shape)`, in the dtype of the field.

        None if they must be converted one by one.
        """
        if isinstance(rows, list) or rows.shape[1:] != self.info.shape:
            return None
        if rows.dtype == self.dtype or self.options.dtype is None:
            return rows if rows.dtype == self.dtype else None
        try:
            return exact(rows, self.dtype)
        except UnreadableError:
            return None

    def decoded(self, value: Value) -> Decoded:
        """Return the array that a value is kept as."""
        found = Decoded(*self.kind.to_array(value, self.options))
        return found._replace(array=exact(found.array, self.options.dtype or found.array.dtype))

    def fits(self, array: NDArray[Any]) -> bool:
        """Return whether an array has the shape and dtype of the example."""
        ragged = self.info.layout == "ragged"
        return array.dtype == self.dtype and (
            array.ndim == self.info.ndim if ragged else array.shape == self.info.shape
        )

    def with_example(self, path: str, value: Value) -> FieldRule:
        """Return the rule with shape and dtype taken from a sample; errors as `add`."""
        column, info = FieldColumn(), self.info
        self.add(path, value, column)
        if not self.decode:
            return replace(self, example=path, example_bytes=len(column.items[0]))
        array, rate, _ = self.decoded(value)
        options, mixed = self.options, self.options.mixed or self.kind.mixed
        update: dict[str, object] = {
            "dtype": array.dtype.name, "sample_rate": rate, "encoding": "raw",
        }  # fmt: skip
        if mixed == "ragged":
            update |= {"layout": "ragged", "ndim": array.ndim}
        else:
            update |= {"layout": "fixed", "shape": array.shape}
        if options.codec != "none":
            chunk = chunk_samples(array.nbytes, options.chunk_samples)
            update |= {"codec": options.codec, "chunk_samples": chunk}
        if mixed == "resize" and options.resize is None:
            height, width = array.shape[:2]
            options = options.model_copy(update={"resize": (int(height), int(width))})
        num_bytes = len(value) if isinstance(value, bytes) else int(getattr(value, "nbytes", 0))
        return replace(
            self,
            info=info.model_copy(update=update),
            options=options,
            example=path,
            example_bytes=array.nbytes,
            growth=max(1.0, array.nbytes / num_bytes) if num_bytes else 1.0,
        )

    def _misfit(self, path: str, array: NDArray[Any]) -> DataError:
        info = self.info
        expected = f"{info.ndim} axes" if info.layout == "ragged" else str(info.shape)
        return DataError(
            f"'{path}' has shape {array.shape} {array.dtype}, '{self.example}' has {expected} "
            f"{info.dtype}",
            self._way_out(array),
        )

    def _way_out(self, array: NDArray[Any]) -> str:
        info = self.info
        if array.dtype.name != info.dtype:
            return f"Make all of equal dtype, or set pack.fields.{info.name}.dtype."
        other_axes = array.ndim != (info.ndim or len(info.shape))
        if way := self.kind.way_out(info.name, other_axes=other_axes):
            return way
        if info.layout == "ragged":
            return "Make all of equally many axes."
        return f"Make all of equal shape, or set pack.fields.{info.name}.mixed to 'ragged'."


def field_rules(
    name: str, source: Source, pack: PackSpec, samples: SampleTable
) -> tuple[FieldRule, ...]:
    """Return how each field is kept, in the order of the source's fields, but `label` last.

    Shapes are taken from the first sample that can be read.
    """
    check_names(pack, [each.name for each in source.fields])
    first = (_first_rule(each, pack) for each in source.fields)
    rules = sorted(first, key=lambda rule: rule.info.name == "label")
    bad: list[Quarantined] = []
    each = (samples[at : at + 1] for at in range(len(samples)))
    for one in islice(each, NUM_TRIED):  # the first is mostly all that is needed
        path, (values,) = one[0].path, source.read(one)
        if isinstance(values, Unreadable):
            bad.append(Quarantined(path=path, reason=values.reason))
            continue
        try:
            return tuple(rule.with_example(path, values[rule.info.name]) for rule in rules)
        except UnreadableError as error:
            bad.append(Quarantined(path=path, reason=str(error)))
    raise DataError(
        f"None of the first {len(bad)} samples in {name} can be read: {describe(bad)}",
        "Repair or remove these files or rows, name what stands for missing values in "
        "dataset.missing, or narrow dataset.include.",
    )


def describe(quarantined: Sequence[Quarantined]) -> str:
    """Return the first samples that were left out, with reasons."""
    shown = "; ".join(f"{item.path}: {item.reason}" for item in quarantined[:_NUM_SHOWN])
    more = len(quarantined) - _NUM_SHOWN
    return shown + (f"; and {more:,} more" if more > 0 else "")


def as_bytes(array: NDArray[Any]) -> Buffer:
    """Return the bytes of an array in C order and little-endian; shared with it if possible."""
    if not array.size:
        return b""
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8).data


def chunk_samples(sample_bytes: int, wanted: int | None = None) -> int:
    """Return the samples in a chunk of a compressed field; a chunk is decompressed as a whole.

    One, so that a shuffled epoch decompresses each once; smaller samples share 4 KiB.
    """
    most = _MAX_CHUNK_BYTES if wanted else _CHUNK_BYTES
    return max(1, min(most // max(1, sample_bytes), wanted or most))


def check_names(pack: PackSpec, names: Collection[str]) -> None:
    """Refuse options of fields that the source does not have."""
    for name in pack.fields:
        if name not in names:
            raise RecipeError(
                f"pack.fields names '{name}', which the source does not have",
                f"{nearest(name, names)} Fields found: {', '.join(names)}.",
            )


def check_options(given: SourceField, pack: PackSpec) -> tuple[Kind, bool]:
    """Return the kind of a field, and whether its values are decoded.

    Raises:
        RecipeError: Its options are not for its kind, or contradict each other.
    """
    options, key = _options(given, pack), f"pack.fields.{given.name}"
    kind = kind_named(given.kind).oriented(options.orientation)
    default = pack.images if "resize" in kind.options else kind.keep
    decode = (options.keep or default) == "decode"
    for option in options_set(options):
        if option not in kind.options:
            raise RecipeError(
                f"{key}.{option} is set, but '{given.name}' is of kind {given.kind}",
                f"Leave it out: it is for fields of kind {', '.join(kinds_with(option))}.",
            )
        if not decode and "keep" in kind.options and option not in ("keep", "orientation"):
            raise RecipeError(
                f"{key}.{option} is set, but '{given.name}' stays encoded",
                f"Set {key}.keep to 'decode', or leave {option} out: what stays encoded is changed "
                "in training, as images by headrace.data.transforms.RandomResizedCrop.",
            )
    if options.chunk_samples and options.codec == "none":
        raise RecipeError(
            f"{key}.chunk_samples is set, but its codec is 'none'",
            "Set a codec, or leave chunk_samples out: fields without a codec have no chunks.",
        )
    if options.mixed == "resize" and "resize" not in kind.options:
        raise RecipeError(
            f"{key}.mixed is 'resize', but '{given.name}' is of kind {given.kind}",
            "Only images can be resized. Valid: error, ragged.",
        )
    if decode and options.codec != "none" and (options.mixed or kind.mixed) == "ragged":
        raise RecipeError(
            f"{key}.codec is '{options.codec}', but '{given.name}' is of varying shape",
            "Codecs are for fields of one shape: leave it out.",
        )
    return kind, decode


def _options(given: SourceField, pack: PackSpec) -> PackField:
    options = pack.fields.get(given.name, _DEFAULT)
    return options if options.mixed else options.model_copy(update={"mixed": given.mixed})


def _first_rule(given: SourceField, pack: PackSpec) -> FieldRule:
    """Return a rule before an example is known: without a shape, with a dtype only if given."""
    kind, decode = check_options(given, pack)
    options, turned = _options(given, pack), not decode and "orientation" in kind.options
    if given.dtype:
        dtype = options.dtype or given.dtype
        info = FieldInfo(name=given.name, dtype=dtype, layout="fixed")
    else:
        info = FieldInfo(
            name=given.name,
            dtype="uint8",
            layout="ragged",
            encoding=given.encoding or kind.encodings[0],
            orientation=(options.orientation or "apply") if turned else None,
        )
    return FieldRule(
        info=info, kind=kind, decode=decode, check=pack.check == "decode", options=options
    )


def options_set(options: PackField) -> list[str]:
    """Return the keys that are set, of those that apply to some kinds only."""
    known = sorted(options_of_kinds())
    return [name for name in known if getattr(options, name) not in (None, "none")]
