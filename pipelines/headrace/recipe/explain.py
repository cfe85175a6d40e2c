"""Validation errors in the words of the person who wrote the recipe."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from headrace.errors import nearest


def explain(error: ValidationError, kind: type[BaseModel], origin: str) -> tuple[str, str]:
    """What is wrong and what to do, for every problem that validation found.

    Args:
        error: Pydantic's error.
        kind: The model that was validated.
        origin: File or place where the content came from.

    Returns:
        `(what, hint)` for a `HeadraceError`.
    """
    problems = [_one(dict(item), kind) for item in error.errors()]
    what = f"{origin}: " + "; ".join(problem for problem, _ in problems)
    return what, " ".join(dict.fromkeys(hint for _, hint in problems if hint))


def _one(item: dict[str, Any], kind: type[BaseModel]) -> tuple[str, str]:
    location = tuple(item["loc"])
    key = ".".join(str(part) for part in location) or "the whole"
    if item["type"] == "extra_forbidden":
        parent = _model_at(kind, location[:-1])
        choices = valid_keys(parent) if parent else []
        return f"unknown key '{key}'", nearest(str(location[-1]), choices)
    if item["type"] == "missing":
        return f"the key '{key}' is missing", ""
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "value_error" and not location:
        return message, ""
    value = item.get("input")
    shown = f" (got {value!r})" if isinstance(value, (str, int, float, bool)) else ""
    return f"{key}: {message}{shown}", ""


def valid_keys(kind: type[BaseModel]) -> list[str]:
    """Keys of a model as they are written in YAML."""
    return [field.alias or name for name, field in kind.model_fields.items()]


def _model_at(kind: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    current: type[BaseModel] | None = kind
    for part in location:
        if current is None:
            return None
        field = next(
            (f for n, f in current.model_fields.items() if part in (n, f.alias)),
            None,
        )
        # an index or a free key of a mapping keeps the model found for its container
        current = _model_in(field.annotation) if field else current
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in get_args(annotation):
        found = _model_in(part)
        if found is not None:
            return found
    return None
