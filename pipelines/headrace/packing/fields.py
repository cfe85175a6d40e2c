"""How each field of a source is kept in the shards: rules, from the recipe and one example."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import RecipeError, nearest
from headrace.fields.field_kind import Kind, kind_named, kinds_with, options_of_kinds
from headrace.files.manifest import FieldInfo
from headrace.packing.samples import SourceField
from headrace.recipe.dataset import PackField, PackSpec

_CHUNK_BYTES = 4 * 2**10
_MAX_CHUNK_BYTES = 16 * 2**20


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

    @property
    def fixed_bytes(self) -> int:
        """Bytes that every sample takes in a shard, besides those that vary."""
        if self.info.layout == "fixed":
            return math.prod(self.info.shape) * np.dtype(self.info.dtype).itemsize
        return 8 + 8 * (self.info.ndim or 0)


def first_rules(fields: Sequence[SourceField], pack: PackSpec) -> tuple[FieldRule, ...]:
    """Rules before an example is known: without shapes, and dtypes only where they are given."""
    names = [each.name for each in fields]
    for name in pack.fields:
        if name not in names:
            raise RecipeError(
                f"pack.fields names '{name}', which the source does not have",
                f"{nearest(name, names)} Fields found: {', '.join(names)}.",
            )
    return tuple(_first_rule(each, pack) for each in fields)


def with_example(
    rule: FieldRule, example: NDArray[Any] | None, path: str, num_bytes: int, rate: int | None
) -> FieldRule:
    """The rule with shape and dtype taken from an example."""
    if example is None:
        return replace(rule, example=path, example_bytes=num_bytes)
    mixed = rule.options.mixed or rule.kind.mixed
    update: dict[str, object] = {
        "dtype": example.dtype.name, "sample_rate": rate, "encoding": "raw",
    }  # fmt: skip
    if mixed == "ragged":
        update |= {"layout": "ragged", "ndim": example.ndim}
    else:
        update |= {"layout": "fixed", "shape": example.shape}
    if rule.options.codec != "none":
        if mixed == "ragged":
            name = rule.info.name
            raise RecipeError(
                f"pack.fields.{name}.codec is '{rule.options.codec}', but '{name}' is of varying "
                "shape",
                "Codecs are for fields of one shape: leave it out.",
            )
        chunk = chunk_samples(example.nbytes, rule.options.chunk_samples)
        update |= {"codec": rule.options.codec, "chunk_samples": chunk}
    options = rule.options
    if mixed == "resize" and options.resize is None:
        height, width = example.shape[:2]
        options = options.model_copy(update={"resize": (int(height), int(width))})
    return replace(
        rule,
        info=rule.info.model_copy(update=update),
        options=options,
        example=path,
        example_bytes=example.nbytes,
        growth=max(1.0, example.nbytes / num_bytes) if num_bytes else 1.0,
    )


def chunk_samples(sample_bytes: int, wanted: int | None = None) -> int:
    """Return the samples in a chunk of a compressed field; a chunk is decompressed as a whole.

    One, so that a shuffled epoch decompresses each once; smaller samples share 4 KiB.
    """
    most = _MAX_CHUNK_BYTES if wanted else _CHUNK_BYTES
    return max(1, min(most // max(1, sample_bytes), wanted or most))


def _first_rule(given: SourceField, pack: PackSpec) -> FieldRule:
    options = pack.fields.get(given.name, PackField())
    _check_options(given, options)
    kind = kind_named(given.kind).oriented(options.orientation)
    default = pack.images if "resize" in kind.options else kind.keep
    decode = (options.keep or default) == "decode"
    if "keep" in kind.options and not decode:
        _check_kept_encoded(given.name, options)
    return FieldRule(
        info=_first_info(given, kind, options, decode=decode),
        kind=kind,
        decode=decode,
        check=pack.check == "decode",
        options=options,
    )


def _first_info(given: SourceField, kind: Kind, options: PackField, *, decode: bool) -> FieldInfo:
    if given.dtype:
        dtype = options.dtype or given.dtype
        return FieldInfo(name=given.name, dtype=dtype, layout="fixed")
    turned = not decode and "orientation" in kind.options
    return FieldInfo(
        name=given.name,
        dtype="uint8",
        layout="ragged",
        encoding=given.encoding or kind.encodings[0],
        orientation=(options.orientation or "apply") if turned else None,
    )


def _check_options(given: SourceField, options: PackField) -> None:
    for option in sorted(options.model_fields_set & options_of_kinds()):
        kinds = kinds_with(option)
        if given.kind not in kinds and getattr(options, option) not in (None, "none"):
            raise RecipeError(
                f"pack.fields.{given.name}.{option} is set, but '{given.name}' is of kind "
                f"{given.kind}",
                f"Leave it out: it is for fields of kind {', '.join(kinds)}.",
            )
    if options.chunk_samples and options.codec == "none":
        raise RecipeError(
            f"pack.fields.{given.name}.chunk_samples is set, but its codec is 'none'",
            "Set a codec, or leave chunk_samples out: fields without a codec have no chunks.",
        )
    if options.mixed == "resize" and given.kind not in kinds_with("resize"):
        raise RecipeError(
            f"pack.fields.{given.name}.mixed is 'resize', but '{given.name}' is of kind "
            f"{given.kind}",
            "Only images can be resized. Valid: error, ragged.",
        )


def _check_kept_encoded(name: str, options: PackField) -> None:
    for option in sorted(options_of_kinds() - {"keep", "orientation"}):
        if getattr(options, option) not in (None, "none"):
            raise RecipeError(
                f"pack.fields.{name}.{option} is set, but '{name}' stays encoded",
                f"Set pack.fields.{name}.keep to 'decode', or leave {option} out.",
            )
