"""The base of everything that is written as JSON and read back."""

from __future__ import annotations

import json
from typing import Any

from pydantic import VERSION, BaseModel, ConfigDict

LAZY = tuple(map(int, VERSION.split(".")[:2])) >= (2, 14)
"""Whether validators are built when they are first used: since 2.14 pydantic does so in a lock."""


class Record(BaseModel):
    """A frozen record that travels as JSON; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=LAZY)


class Figures(Record):
    """A record with numbers that may be NaN or infinite, and are read back so."""

    model_config = ConfigDict(ser_json_inf_nan="constants")


def build_records(base: type[BaseModel] = Record) -> None:
    """Build what reads and writes each record now, for all processes that are forked from this."""
    for kind in base.__subclasses__():
        kind.model_rebuild()
        build_records(kind)


def as_json_values(record: BaseModel) -> Any:
    """A record as JSON values; null for numbers that JSON has not, as NaN."""
    return json.loads(record.model_dump_json(), parse_constant=lambda _: None)
