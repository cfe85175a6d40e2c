"""What all parts of recipes and sites share: frozen models, units."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from typing_extensions import Self

from headrace.errors import shortened, without_secrets
from headrace.record import Record

MAX_COUNT = 10**12
"""More samples, steps or epochs than anyone has."""

MAX_PARALLEL = 10**6
"""More nodes, ranks, threads or jobs than anyone has at once."""

MAX_BYTES = 2**60
"""More bytes than anyone has, 1 EiB."""

MAX_SECONDS = 100 * 366 * 86400.0
"""A hundred years."""

PAIRS = "_pairs_"
"""Key of JSON under which a mapping lies as pairs: keys of JSON are texts, those of a recipe not
always."""

_DURATION_UNITS_S = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def to_json(value: Any) -> Any:
    """Return plain values whose mappings all have texts as keys, as JSON keeps them."""
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    pairs = [[key, to_json(each)] for key, each in value.items()]
    return dict(pairs) if all(isinstance(key, str) for key in value) else {PAIRS: pairs}


def from_json(value: Any) -> Any:
    """Return the plain values of `to_json`; raise ValueError for wrong pairs, or a key twice."""
    if isinstance(value, list | tuple):
        return [from_json(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() != {PAIRS}:
        return {key: from_json(each) for key, each in value.items()}
    try:
        pairs = [(key, each) for key, each in value[PAIRS] if hash(key) is not None]
    except (TypeError, ValueError):
        raise ValueError(f"'{PAIRS}' needs a list of pairs of a key and a value") from None
    return unique((key, from_json(each)) for key, each in pairs)


def unique(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a mapping of pairs; raise ValueError for a key twice: `1`, `1.0`, `true` are one."""
    content: dict[Any, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"the key {shortened(repr(key))} is there twice")
        content[key] = value
    return content


Arguments = Annotated[
    dict[str, object], BeforeValidator(from_json), PlainSerializer(to_json, when_used="json")
]
"""Keyword arguments; keys of mappings inside them keep their types."""


Problems = Iterator[str]
"""Messages about values that contradict each other, and what to write."""


def _strict(schema: Any) -> Any:
    """Return a schema whose numbers take no text or switch, whose whole numbers take no 1.0."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: each if key == "default" else _strict(each) for key, each in schema.items()}
    return found | {"strict": True} if found.get("type") in ("int", "float", "bool") else found


class Settings(Record):
    """A part of a recipe or site: numbers and switches are never converted from other types."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return _strict(handler(source))

    def problems(self) -> Problems:
        """Yield which values contradict each other; the first is reported."""
        yield from ()

    @model_validator(mode="after")
    def _has_no_problems(self) -> Self:
        for key, value in self:  # recipes and sites are saved with every run
            if isinstance(value, str) and without_secrets(value) != value:
                raise ValueError(f"'{key}' holds credentials; give them in the environment or a "
                                 "profile, never in a URL")  # fmt: skip
        for problem in self.problems():
            raise ValueError(problem)
        return self


class Target(BaseModel):
    """A class or function by its dotted name and its keyword arguments, as in Hydra.

    Called only when the step runs, and only if it belongs there or the site lists it.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    target: str = Field(alias="_target_")
    """Dotted name of a class or function, such as `my_package.models.Classifier`."""

    def as_config(self) -> dict[str, object]:
        """Its name as `_target_`, and its arguments."""
        return self.model_dump(by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _from_json(cls, content: object) -> object:
        return from_json(content)

    @model_serializer(mode="wrap", when_used="json")
    def _to_json(self, handler: SerializerFunctionWrapHandler) -> Any:
        return handler(self.model_copy(update=to_json(self.__pydantic_extra__ or {})))


def _parse_duration(value: object) -> object:
    text = value.strip() if isinstance(value, str) else ""
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*(s|min|m|h|d)?", text)
    return value if match is None else float(match[1]) * _DURATION_UNITS_S[match[2] or "s"]


def _named(place: str) -> str:
    if "://" not in place and any(len(os.fsencode(part)) > 255 for part in place.split("/")):
        raise ValueError("a name in it has more than 255 bytes, which no file can have")
    if "\0" in place:
        raise ValueError("it holds a null byte")
    return place


def _whole(size: object) -> object:
    if isinstance(size, bool | float):
        raise ValueError(  # noqa: TRY004  pydantic takes no TypeError
            "give a whole number of bytes, or text such as 64MiB or 2GB"
        )
    return size


def _bounded(size: ByteSize) -> ByteSize:
    if size > MAX_BYTES:
        raise ValueError(f"at most 2^60 bytes (1 EiB), not {size:.3g}")
    return size


def _or_text(pattern: str, about: str, **number: object) -> WithJsonSchema:
    """Return the schema of a number that may be written as text."""
    text = {"type": "string", "pattern": pattern, "description": about}
    return WithJsonSchema({"anyOf": [number, text]})


_seconds = partial(
    _or_text, r"^\s*\d+(\.\d+)?\s*(s|min|m|h|d)?\s*$", "text such as 90s, 30min, 4h or 2d",
    type="number", maximum=MAX_SECONDS,
)  # fmt: skip

Seconds = Annotated[
    float,
    Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False),
    BeforeValidator(_parse_duration),
    _seconds(minimum=0, description="seconds, from 0 to a hundred years"),
]
"""A duration in seconds; written as a number or as `90s`, `30min`, `4h`, `2d`."""

PositiveSeconds = Annotated[
    Seconds,
    Field(gt=0),
    _seconds(exclusiveMinimum=0, description="seconds, above 0, up to a hundred years"),
]
"""A duration above 0, as `Seconds`."""

Lifetime = Annotated[Seconds | Literal["auto"], Field(union_mode="left_to_right")]
"""A duration in seconds, as `Seconds`, or `auto` to let headrace choose."""

Bytes = Annotated[
    ByteSize,
    BeforeValidator(_whole),
    AfterValidator(_bounded),
    _or_text(
        r"^\s*(\d*\.?\d+)\s*(\w+)?", "text such as 64MiB or 2GB",
        type="integer", minimum=0, maximum=MAX_BYTES, description="bytes, from 0 to 1 EiB",
    ),
]  # fmt: skip
"""A size in bytes; written as a number or as `64MiB`, `2GB`."""

Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""A share between 0 and 1."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
"""How many samples, steps or epochs there are."""

CountFrom0 = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""The same, or none."""

Parallel = Annotated[int, Field(ge=1, le=MAX_PARALLEL)]
"""How many nodes, ranks, threads, jobs or trials there are at once."""

Times = Annotated[int, Field(ge=0, le=10_000)]
"""How often something is done again, or how far ahead."""

Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""A seed, as numpy and PyTorch take them."""

Number = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
"""A number that is neither NaN nor infinite."""

Amount = Annotated[Number, Field(gt=0)]
"""How much of something there is, as US dollars or hours."""

AmountFrom0 = Annotated[Number, Field(ge=0)]
"""The same, or nothing."""

_Word = (
    str
    | Annotated[int, Field(ge=-(10**18), le=10**18, strict=True)]
    | Annotated[Number, Field(strict=True)]
)
_Value = _Word | Annotated[bool, Field(strict=True)]
_Entry = _Value | Annotated[tuple[_Value, ...], Field(max_length=10_000)] | None
_ArgumentName = Annotated[str, Field(pattern=r"^[^\s=]+$", max_length=500)]
_ScriptArguments = (
    Annotated[tuple[_Word, ...], Field(max_length=10_000)]
    | Annotated[dict[_ArgumentName, _Entry], Field(max_length=1000)]
)


def _read_arguments(value: object) -> object:
    try:
        return TypeAdapter(_ScriptArguments).validate_python(value)
    except ValidationError as error:
        wrong = shortened(json.dumps(error.errors()[-1]["input"], default=repr))
        raise ValueError(
            f"{wrong} is not valid: write a list of texts and numbers, as [--epochs, 3], or a "
            "mapping of names to texts, numbers, true, false, null and lists of these, as "
            "{--epochs: 3, opt.lr: 0.1}"
        ) from None


ScriptArguments = Annotated[_ScriptArguments, BeforeValidator(_read_arguments)]
"""Arguments of a program: words, or values by name."""

Texts = Annotated[tuple[str, ...], Field(max_length=10_000)]
"""Some texts."""

Place = Annotated[str, Field(max_length=4096), AfterValidator(_named)]
"""A path or URL."""

Places = Annotated[tuple[Place, ...], Field(max_length=10_000)]
"""Some paths or URLs."""

Targets = Annotated[tuple[Target, ...], Field(max_length=1000)]
"""Some targets."""

Name = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="a name of up to 64 letters, digits, '.', '_', '-'; first a letter or digit",
    ),
]
"""A name that is safe in file names: letters, digits, dot, underscore, hyphen."""

Member = Annotated[str, Field(pattern=r"^\S+$", max_length=200)]
"""A user by name, or a team as `@name`."""
