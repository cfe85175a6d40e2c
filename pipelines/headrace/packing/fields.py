"""How each field of a source is kept in the shards: rules, from the recipe and one example."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import RecipeError, nearest
from headrace.fields.kinds import FieldKind
from headrace.files.manifest import FieldInfo
from headrace.packing.samples import SourceField
from headrace.recipe.dataset import PackField, PackSpec

_ENCODED_KINDS = ("image", "audio")
_DECODED_KINDS = (*_ENCODED_KINDS, "array")
_CHUNK_BYTES = 4 * 2**10
_MAX_CHUNK_BYTES = 16 * 2**20

_OPTION_KINDS: Mapping[str, tuple[str, ...]] = {
    "keep": _ENCODED_KINDS,
    "resize": ("image",),
    "channels": ("image",),
    "sample_rate": ("audio",),
    "dtype": _DECODED_KINDS,
    "mixed": _DECODED_KINDS,
    "codec": (*_DECODED_KINDS, "value"),
    "chunk_samples": _DECODED_KINDS,
}


@dataclass(frozen=True, kw_only=True)
class FieldRule:
    """How one field is kept."""

    info: FieldInfo
    """The field in the shards; dtype and shape from the example."""
    kind: FieldKind
    decode: bool = False
    check: bool = False
    """Whether values that stay encoded are decoded once, to be sure that they can be."""
    options: PackField = field(default_factory=PackField)
    resize: tuple[int, int] | None = None
    """Height and width that images are resized to."""
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


def settled(
    rule: FieldRule, example: NDArray[Any] | None, path: str, num_bytes: int, rate: int | None
) -> FieldRule:
    """The rule with shape and dtype taken from an example."""
    if example is None:
        return replace(rule, example=path, example_bytes=num_bytes)
    mixed = rule.options.mixed or ("ragged" if rule.kind == "audio" else "error")
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
    resize = rule.resize
    if mixed == "resize" and resize is None:
        resize = (int(example.shape[0]), int(example.shape[1]))
    return replace(
        rule,
        info=rule.info.model_copy(update=update),
        resize=resize,
        example=path,
        example_bytes=example.nbytes,
        growth=max(1.0, example.nbytes / num_bytes) if num_bytes else 1.0,
    )


def chunk_samples(sample_bytes: int, wanted: int | None = None) -> int:
    """Samples in a chunk of a compressed field, all of which is decompressed for any of them.

    One, so that a shuffled epoch decompresses each once; smaller samples share 4 KiB.
    """
    most = _MAX_CHUNK_BYTES if wanted else _CHUNK_BYTES
    return max(1, min(most // max(1, sample_bytes), wanted or most))


def _first_rule(given: SourceField, pack: PackSpec) -> FieldRule:
    options = pack.fields.get(given.name, PackField())
    _check_options(given, options)
    kept = options.keep
    if kept is None and given.kind == "image":
        kept = "decode" if pack.images == "decode" else "encoded"
    decode = given.kind == "array" or (given.kind in _ENCODED_KINDS and kept == "decode")
    if given.kind in _ENCODED_KINDS and not decode:
        _check_kept_encoded(given.name, options)
    return FieldRule(
        info=_first_info(given),
        kind=given.kind,
        decode=decode,
        check=pack.check == "decode",
        options=options,
        resize=options.resize,
    )


def _first_info(given: SourceField) -> FieldInfo:
    if given.kind == "value":
        return FieldInfo(name=given.name, dtype=given.dtype, layout="fixed")
    encodings = {"text": "text", "image": "image", "audio": "audio"}
    encoding = given.encoding or encodings.get(given.kind, "raw")
    return FieldInfo.model_validate(
        {"name": given.name, "dtype": "uint8", "layout": "ragged", "encoding": encoding}
    )


def _check_options(given: SourceField, options: PackField) -> None:
    for option in sorted(options.model_fields_set & _OPTION_KINDS.keys()):
        kinds = _OPTION_KINDS[option]
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
    if options.mixed == "resize" and given.kind != "image":
        raise RecipeError(
            f"pack.fields.{given.name}.mixed is 'resize', but '{given.name}' is of kind "
            f"{given.kind}",
            "Only images can be resized. Valid: error, ragged.",
        )


def _check_kept_encoded(name: str, options: PackField) -> None:
    for option in sorted(_OPTION_KINDS.keys() - {"keep"}):
        if getattr(options, option) not in (None, "none"):
            raise RecipeError(
                f"pack.fields.{name}.{option} is set, but '{name}' stays encoded",
                f"Set pack.fields.{name}.keep to 'decode', or leave {option} out.",
            )
