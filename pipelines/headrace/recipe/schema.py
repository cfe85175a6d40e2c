"""Recipes and sites as those who write them see them: JSON schema, and what is wrong in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from headrace.errors import UnknownNameError, nearest, shortened
from headrace.recipe.arguments import trainer_arguments
from headrace.recipe.meanings import WithMeanings
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.train import OF_LIGHTNING, TrainerSpec

MODELS: dict[str, type[BaseModel]] = {"recipe": Recipe, "site": Site}
"""Kinds of file that have a schema."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}
_ABOUT = ("title", "description", "default")
_SCALARS = ("integer", "number", "boolean")
_MOST_PLACES = 3
_MOST_PROBLEMS = 20


def json_schema(kind: str) -> dict[str, Any]:
    """JSON schema of a `recipe` or `site` as it is written: before interpolation, name optional.

    Raises:
        UnknownNameError: There is no such kind.
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
    """Let `${…}` stand where a number, a switch or a choice is asked for."""
    about, choices = value, value.get("anyOf")
    if choices is None:
        about = {key: value[key] for key in _ABOUT if key in value}
        choices = [{key: content for key, content in value.items() if key not in about}]
    is_strict = any(_is_strict(choice) for choice in choices)
    return {**about, "anyOf": [*choices, _INTERPOLATION]} if is_strict else value


def _is_strict(value: dict[str, Any]) -> bool:
    return value.get("type") in _SCALARS or "enum" in value or "const" in value


def explain(error: ValidationError, kind: type[BaseModel], origin: str) -> tuple[str, str]:
    """What is wrong and what to do, for every problem that validation of a content found."""
    found = error.errors()
    problems = [_one(dict(item), kind) for item in found[:_MOST_PROBLEMS]]
    more = [f"and {len(found) - _MOST_PROBLEMS} more"] if len(found) > _MOST_PROBLEMS else []
    what = f"{origin}: " + "; ".join([*(problem for problem, _ in problems), *more])
    return what, " ".join(dict.fromkeys(hint for _, hint in problems if hint))


def _one(item: dict[str, Any], kind: type[BaseModel]) -> tuple[str, str]:
    location = tuple(item["loc"])
    key = ".".join(str(part) for part in location) or "the whole"
    if item["type"] == "extra_forbidden":
        name = str(location[-1])
        hint = nearest(name, _valid_in(kind, location[:-1]))
        return f"unknown key '{key}'", _of_lightning(key, kind) or _with_places(hint, name, kind)
    if item["type"] == "missing":
        return f"the key '{key}' is missing", ""
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "value_error" and not location:
        return message, ""
    value = None if location[:1] == ("secrets",) else item.get("input")  # it may be one
    shown = f" (got {shortened(repr(value))})" if isinstance(value, (str, int, float, bool)) else ""
    return f"{key}: {message}{shown}", ""


def _of_lightning(key: str, kind: type[BaseModel]) -> str:
    """Where an argument of Lightning's Trainer belongs; empty for another key, or a right one."""
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
    """A hint, and where else such a key belongs, in a recipe or in a site."""
    known: dict[str, list[str]] = {}
    for file, model in sorted(MODELS.items(), key=lambda item: item[1] is not kind):
        whose = "" if model is kind else f" of the {file}"
        for place in _places(model):
            known.setdefault(place.rpartition(".")[2], []).append(f"'{place}'{whose}")
    if hint.startswith("Did you mean") and key not in known:
        return hint  # a slip of the pen is likelier than another section's
    names = [key] if key in known else difflib.get_close_matches(key, known, n=1, cutoff=0.8)
    places = [place for name in names for place in known[name][:_MOST_PLACES]]
    here = hint.partition("Valid: ")[2]
    return f"Did you mean {' or '.join(places)}? Valid here: {here}" if places else hint


def _places(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted keys of a model and of those in it; `*` stands for names and numbers."""
    for name, field in kind.model_fields.items():
        place = f"{prefix}{field.alias or name}"
        yield place
        inner = _model_in(field.annotation)
        if inner is not None:
            is_one = inner in (field.annotation, *get_args(field.annotation))
            is_one = is_one and getattr(field.annotation, "__origin__", None) not in (dict, tuple)
            yield from _places(inner, f"{place}." if is_one else f"{place}.*.")


def _valid_in(kind: type[BaseModel], section: tuple[Any, ...]) -> list[str]:
    """Keys of a section, which is named as pydantic does: keys, names and indices."""
    places = [place.split(".") for place in _places(kind)]
    return [
        place[-1]
        for place in places
        if len(place) == len(section) + 1
        and all(part in ("*", named) for part, named in zip(place, section, strict=False))
    ]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in get_args(annotation):
        found = _model_in(part)
        if found is not None:
            return found
    return None
