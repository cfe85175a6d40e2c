"""JSON schemas of recipes and sites, and validation errors in the words of their authors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic._internal._docs_extraction import extract_docstrings_from_cls
from pydantic.json_schema import JsonSchemaValue

from headrace.errors import UnknownNameError, nearest, shortened
from headrace.recipe.backend import option_blocks
from headrace.recipe.lightning_arguments import OF_LIGHTNING
from headrace.recipe.python_source import trainer_arguments
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.train import TrainerSpec
from headrace.recipe.yaml_types import Expected, Place, WithOptions

MODELS: dict[str, type[BaseModel]] = {"recipe": Recipe, "site": Site}
"""Kinds of file that have a schema."""

Problem = dict[str, Any]
"""One problem, as pydantic reports it."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}
_ABOUT = ("title", "description", "default")
_SCALARS = ("integer", "number", "boolean")
_MOST_PLACES = 3
_MOST_PROBLEMS = 20


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a `recipe` or `site` file: before interpolation, name optional.

    Raises:
        UnknownNameError: The kind is unknown.
    """
    if kind not in MODELS:
        raise UnknownNameError(f"There is no schema of '{kind}'", nearest(kind, MODELS))
    schema = MODELS[kind].model_json_schema(by_alias=True, schema_generator=WithMeanings)
    schema["required"] = [key for key in schema["required"] if key != "name"]
    parts = [schema, *schema.get("$defs", {}).values()]
    for part in parts:
        properties = part.get("properties", {})
        part["properties"] = {key: _interpolated(value) for key, value in properties.items()}
    return {"$schema": _DIALECT, **schema}


def _interpolated(value: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that also accepts `${…}` for a number, a switch or a choice."""
    about, choices = value, value.get("anyOf")
    if choices is None:
        about = {key: value[key] for key in _ABOUT if key in value}
        choices = [{key: content for key, content in value.items() if key not in about}]
    is_strict = any(
        each.get("type") in _SCALARS or "enum" in each or "const" in each for each in choices
    )
    return {**about, "anyOf": [*choices, _INTERPOLATION]} if is_strict else value


def explain(error: ValidationError, kind: type[BaseModel], origin: str) -> tuple[str, str]:
    """Return what is wrong and what to do, for all problems that validation found."""
    found = _by_place(error, kind)
    problems = [_one(item, expected, kind) for item, expected in found[:_MOST_PROBLEMS]]
    more = [f"and {len(found) - _MOST_PROBLEMS} more"] if len(found) > _MOST_PROBLEMS else []
    what = f"{origin}: " + "; ".join([*(problem for problem, _ in problems), *more])
    return what, " ".join(dict.fromkeys(hint for _, hint in problems if hint))


def _by_place(error: ValidationError, kind: type[BaseModel]) -> list[tuple[Problem, Expected]]:
    """Return the most informative problem of each place; pydantic reports each type it tried."""
    found: dict[tuple[Place, bool], tuple[Problem, Expected]] = {}
    items = [(dict(item), Expected(kind, item["loc"])) for item in error.errors()]
    items.sort(key=lambda each: (each[0]["type"] != "value_error", each[1].num_behind))
    for item, expected in items:
        found.setdefault((expected.place, expected.is_key), (item, expected))
    # where an entry is wrong there are too few only because it is left out
    outer = {place[:end] for place, _ in found for end in range(len(place))}
    return [
        (item, expected)
        for item, expected in found.values()
        if item["type"] != "too_short" or expected.place not in outer
    ]


def _one(item: Problem, expected: Expected, kind: type[BaseModel]) -> tuple[str, str]:
    location = tuple(item["loc"])
    key = ".".join(map(str, expected.place)) or "the file"
    if item["type"] == "extra_forbidden" and expected.num_behind == 1:
        name, key = str(location[-1]), ".".join(map(str, location))
        hint = nearest(name, Expected(kind, location[:-1]).keys)
        if kind in MODELS.values():
            hint = _of_lightning(key, kind) or _with_places(hint, name, kind)
        return f"unknown key '{key}'", hint
    if item["type"] == "missing" and not expected.num_behind:
        return f"the key '{key}' is missing", f"'{key}' takes {expected.words}."
    value = item.get("input")
    is_secret = location[:1] == ("secrets",)
    got = "" if is_secret or expected.num_behind > 1 else f" (got {_shown(value)})"
    written = "" if is_secret else _written(value, expected)
    if item["type"] == "value_error":
        message = str(item["msg"]).removeprefix("Value error, ")
        is_one = isinstance(value, (str, int, float, bool))
        return (f"{key}: {message}{got if is_one else ''}" if location else message), written
    return f"{key}: give {expected.words}{got}", written or _next_step(key, value, expected)


def _written(value: Any, expected: Expected) -> str:
    """Return the hint for a value that is valid if it is written as another type."""
    text = expected.meant(value)
    if not text or not isinstance(value, str):
        return text and f"Write {text}."
    return f"Write {text} without quotes; of a variable: ${{oc.decode:${{oc.env:NAME}}}}."


def _shown(value: Any) -> str:
    """Return a value as YAML shows it; of lists and mappings only their kind."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, (str, int, float)):
        return shortened(repr(value))
    return "a mapping" if isinstance(value, Mapping) else "a list"


def _next_step(key: str, value: Any, expected: Expected) -> str:
    if value is None and expected.has_default:
        return f"Leave '{key}' out to have its default."
    if isinstance(value, str) and expected.is_list:
        return f"Write it in brackets: [{shortened(value)}]."
    meant = difflib.get_close_matches(str(value), expected.choices, n=1)
    return f"Did you mean '{meant[0]}'?" if meant else ""


def _of_lightning(key: str, kind: type[BaseModel]) -> str:
    """Return where an argument of Lightning's Trainer belongs; empty for other or valid keys."""
    name = key.rpartition(".")[2]
    if kind is not Recipe or name in TrainerSpec.model_fields:
        return ""
    if name in OF_LIGHTNING:
        return f"'{name}' of Lightning's Trainer is set by headrace: {OF_LIGHTNING[name]}."
    meant = difflib.get_close_matches(name, trainer_arguments(), n=1, cutoff=0.85)
    if not meant or meant[0] in TrainerSpec.model_fields:
        return ""
    return f"'{meant[0]}' is an argument of Lightning's Trainer: write trainer.{meant[0]}."


def _with_places(hint: str, key: str, kind: type[BaseModel]) -> str:
    """Return a hint with the places in a recipe or site where the key is valid."""
    known: dict[str, list[str]] = {}
    for file, model in sorted(MODELS.items(), key=lambda item: item[1] is not kind):
        whose = "" if model is kind else f" of the {file}"
        for place in Expected(model, ()).places():
            known.setdefault(place.rpartition(".")[2], []).append(f"'{place}'{whose}")
    if hint.startswith("Did you mean") and key not in known:
        return hint  # a misspelling is more likely than a key of another section
    names = [key] if key in known else difflib.get_close_matches(key, known, n=1, cutoff=0.8)
    places = [place for name in names for place in known[name][:_MOST_PLACES]]
    here = hint.partition("Valid: ")[2]
    return f"Did you mean {' or '.join(places)}? Valid here: {here}" if places else hint


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of fields of a model by key, inherited ones included.

    Pydantic's `use_attribute_docstrings` would read them in each process, a fifth of its start.
    """
    parts = [each for each in reversed(model.__mro__) if each not in BaseModel.__mro__]
    texts: dict[str, str] = {}
    for part in parts:
        texts |= extract_docstrings_from_cls(part, use_inspect=True)
    fields = {name: field.alias or name for name, field in model.model_fields.items()}
    found = {key: texts[name] for name, key in fields.items() if name in texts}
    blocks = option_blocks() if model is Role else {}
    return found | {name: options.__doc__ or "" for name, options in blocks.items()}


class WithMeanings(WithOptions):
    """Writes schemas whose keys have their docstrings as descriptions."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """As pydantic writes the model, with descriptions."""
        written = super().model_schema(schema)
        for key, text in meanings(schema["cls"]).items():
            written["properties"][key]["description"] = text
        return written
