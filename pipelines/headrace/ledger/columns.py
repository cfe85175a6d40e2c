"""What all rows of the ledger have in common, and how values are kept in columns."""

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
    """Text that every database takes: NUL and lone surrogates are written as escapes."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """As the database takes it."""
        if value is None:
            return None
        return value.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


class Choice(TypeDecorator[Enum]):
    """A value of an enumeration as text."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Enum | None, dialect: Dialect) -> str | None:
        """The value's text."""
        return None if value is None else str(value.value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Enum | None:
        """The value with that text."""
        return None if value is None else self.kind(value)


class Number(TypeDecorator[float]):
    """A number; what is none becomes null on every database, as SQLite has it."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        """The number, or null."""
        return None if value is None or math.isnan(value) else float(value)


class Json(TypeDecorator[Any]):
    """A value as JSON text; unlike JSON columns it holds NaN, as metrics may."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.kind)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        """The value as JSON."""
        return json.dumps(value, sort_keys=True, default=EndedJob.model_dump)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """What the JSON says, as the column's kind."""
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
    """When it was asked for."""
