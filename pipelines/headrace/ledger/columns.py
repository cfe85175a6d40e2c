"""Common base of the ledger's rows, and how values are stored in columns."""

from __future__ import annotations

import json
import math
from enum import Enum
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Dialect, Double, Text, TypeDecorator
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass

from headrace.states import EndedJob, FailureClass, LeaseState, StepState


class PlainText(TypeDecorator[str]):
    """Text that every database accepts: NUL and lone surrogates are written as escapes."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return the text as the database accepts it."""
        if value is None:
            return None
        return value.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


class Choice(TypeDecorator[Enum]):
    """A value of an enumeration, stored as text."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Enum | None, dialect: Dialect) -> str | None:
        """Return the value's text."""
        return None if value is None else str(value.value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Enum | None:
        """Return the value with that text."""
        return None if value is None else self.kind(value)


class Number(TypeDecorator[float]):
    """A number; NaN becomes null on every database, as on SQLite."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        """Return the number, or null."""
        return None if value is None or math.isnan(value) else float(value)


class Json(TypeDecorator[Any]):
    """A value as JSON text; unlike JSON columns it may hold NaN, as metrics do."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.kind)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        """Return the value as JSON."""
        return json.dumps(value, sort_keys=True, default=EndedJob.model_dump)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Return the JSON's content as the column's type."""
        return self._adapter.validate_python(json.loads(value or "null"))


class LedgerRow(MappedAsDataclass, DeclarativeBase, kw_only=True):
    """A row of the ledger."""

    type_annotation_map = {
        str: PlainText,
        float: Number,
        StepState: Choice(StepState),
        LeaseState: Choice(LeaseState),
        FailureClass: Choice(FailureClass),
    }

    created_at: Mapped[float]
    """When it was requested."""
