"""The base of all records that are written as JSON and read back."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen record that is stored as JSON; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Figures(Record):
    """A record whose numbers may be NaN or infinite, also in JSON."""

    model_config = ConfigDict(ser_json_inf_nan="constants")


def as_json_values(record: BaseModel) -> Any:
    """Return a record as JSON values; null for numbers that JSON lacks, as NaN."""
    return json.loads(record.model_dump_json(), parse_constant=lambda _: None)
