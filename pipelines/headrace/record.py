"""The base of everything that is written as JSON and read back."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen record that travels as JSON; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Figures(Record):
    """A record with numbers that may be NaN or infinite, and are read back so."""

    model_config = ConfigDict(ser_json_inf_nan="constants")


def as_json_values(record: BaseModel) -> Any:
    """A record as JSON values; null for numbers that JSON has not, as NaN."""
    return json.loads(record.model_dump_json(), parse_constant=lambda _: None)
