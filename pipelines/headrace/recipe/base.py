"""What all parts of recipes and sites share: frozen models, units."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, WithJsonSchema

from headrace.errors import without_secrets

_DURATION_UNITS_S = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


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


def _parse_duration(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|m|h|d)?\s*", value)
    if match is None:
        raise ValueError(f"'{value}' is no duration; write 90s, 30min, 4h or 2d")
    return float(match[1]) * _DURATION_UNITS_S[match[2] or "s"]


def no_credentials(key: str, location: str | None) -> None:
    """Refuse a URL with a user or password in it: recipes and sites are saved with every run."""
    if location and without_secrets(location) != location:
        raise ValueError(
            f"'{key}' holds credentials; give them in the environment or a profile, never in a URL"
        )


_DURATION_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(s|min|m|h|d)?\s*$"},
    ]
}

Seconds = Annotated[
    float, Field(ge=0), BeforeValidator(_parse_duration), WithJsonSchema(_DURATION_SCHEMA)
]
"""A duration in seconds; written as a number or as `90s`, `30min`, `4h`, `2d`."""


def _parse_lifetime(value: object) -> object:
    seconds = value if value == "auto" else _parse_duration(value)
    if isinstance(seconds, (int, float)) and seconds < 0:
        raise ValueError(f"{value} is less than no time; write 90s, 30min, 4h, 2d or auto")
    return seconds


Lifetime = Annotated[
    float | Literal["auto"],
    BeforeValidator(_parse_lifetime),
    WithJsonSchema({"anyOf": [*_DURATION_SCHEMA["anyOf"], {"const": "auto"}]}),
]
"""A duration in seconds, as `Seconds`, or `auto` to let headrace choose."""

Bytes = ByteSize
"""A size in bytes; written as a number or as `64MiB`, `2GB`."""

Fraction = Annotated[float, Field(ge=0, le=1)]
"""A share between 0 and 1."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""A name that is safe in file names: letters, digits, dot, underscore, hyphen."""

Member = Annotated[str, Field(pattern=r"^\S+$", max_length=200)]
"""A user by name, or a team as `@name`."""
