"""JSON schema of recipes and sites, for editors that check YAML while it is written."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from headrace.errors import UnknownNameError, nearest
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site

MODELS: dict[str, type[BaseModel]] = {"recipe": Recipe, "site": Site}
"""Kinds of file that have a schema."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}
_SCALARS = ("integer", "number", "boolean")


def json_schema(kind: str) -> dict[str, Any]:
    """JSON schema of the files as they are written: before interpolation, name optional.

    Args:
        kind: `recipe` or `site`.

    Raises:
        UnknownNameError: There is no such kind.
    """
    if kind not in MODELS:
        raise UnknownNameError(f"There is no schema of '{kind}'", nearest(kind, MODELS))
    schema = MODELS[kind].model_json_schema(by_alias=True)
    schema["required"] = [key for key in schema["required"] if key != "name"]
    parts = [schema, *schema.get("$defs", {}).values()]
    for part in parts:
        properties = part.get("properties", {})
        part["properties"] = {key: _interpolated(value) for key, value in properties.items()}
    return {"$schema": _DIALECT, **schema}


def _interpolated(value: dict[str, Any]) -> dict[str, Any]:
    """Let `${…}` stand where a number, a switch or a choice is asked for."""
    if "anyOf" in value:
        if any(_is_strict(choice) for choice in value["anyOf"]):
            return {**value, "anyOf": [*value["anyOf"], _INTERPOLATION]}
        return value
    if not _is_strict(value):
        return value
    about: dict[str, Any] = {
        key: value[key] for key in ("title", "description", "default") if key in value
    }
    bare = {key: content for key, content in value.items() if key not in about}
    return {**about, "anyOf": [bare, _INTERPOLATION]}


def _is_strict(value: dict[str, Any]) -> bool:
    return value.get("type") in _SCALARS or "enum" in value or "const" in value
