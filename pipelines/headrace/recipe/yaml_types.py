"""Values that a key of a recipe or site takes, in the words of YAML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from headrace.recipe.backend import option_blocks
from headrace.recipe.site import Role

_LIMITS = {
    "minimum": "≥ ",
    "exclusiveMinimum": "> ",
    "maximum": "≤ ",
    "exclusiveMaximum": "< ",
    "minItems": "at least ",
    "maxItems": "at most ",
    "minLength": "at least ",
    "maxLength": "at most ",
}
_PLAIN = re.compile(r"true|false|-?(0|[1-9]\d{0,19})(\.\d{1,20})?(e-?\d{1,3})?")
_OF_KEY = "[key]"
"""What pydantic calls the keys of a mapping, where not their values are wrong."""

Place = tuple[int | str, ...]
"""Where a value stands in a file: keys and numbers of entries."""


class WithOptions(GenerateJsonSchema):
    """Writes schemas in which roles have the options of all backends."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """As pydantic writes the model; of roles, with a key for each backend's own options."""
        written = super().model_schema(schema)
        if schema["cls"] is Role:
            for name, options in option_blocks().items():
                inner = self.generate_inner(options.__pydantic_core_schema__)
                written["properties"][name] = {"anyOf": [inner, {"type": "null"}], "default": None}
            written["additionalProperties"] = False
        return written


@lru_cache(maxsize=8)
def _schema(kind: type[BaseModel]) -> dict[str, Any]:
    return kind.model_json_schema(by_alias=True, schema_generator=WithOptions)


class Expected:
    """The values that a place takes in a file of the model `kind`.

    `location` is the place as pydantic reports it; names of pydantic's types may follow it.
    """

    def __init__(self, kind: type[BaseModel], location: Place) -> None:
        self._defs = _schema(kind).get("$defs", {})
        self._node: Mapping[str, Any] = _schema(kind)
        self.is_key = _OF_KEY in location
        place = tuple(part for part in location if part != _OF_KEY)
        known = 0
        for part in place:
            inner = next((each for each in self._inner(part) if each is not None), None)
            if inner is None:
                break
            self._node, known = inner, known + 1
        self.place = place[:known]
        """The part of the location that keys of the file make up; the rest are pydantic's types."""
        self.num_behind = len(place) - known

    @property
    def words(self) -> str:
        """Valid values, in words."""
        if self.is_key:
            return "another name for the key, of letters and digits"
        return self._words(self._node)

    @property
    def choices(self) -> list[str]:
        """The texts to choose from; empty if other values are valid."""
        found = (each for node in self._options(self._node) for each in node.get("enum", ()))
        return [each for each in found if isinstance(each, str)]

    @property
    def keys(self) -> list[str]:
        """The keys of the mapping that stands there; empty for other values."""
        return [key for node in self._options(self._node) for key in node.get("properties", ())]

    @property
    def is_list(self) -> bool:
        """Whether a list is valid."""
        return any(node.get("type") == "array" for node in self._options(self._node))

    def places(self) -> Iterator[str]:
        """Yield the dotted keys below the place; `*` stands for names and numbers of entries."""
        return self._below(self._node, "")

    def _below(self, node: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for option in self._options(node):
            for key, inner in option.get("properties", {}).items():
                yield f"{prefix}{key}"
                yield from self._below(inner, f"{prefix}{key}.")
            for inner in _inside(option):
                yield from self._below(inner, f"{prefix}*.")

    @property
    def has_default(self) -> bool:
        """Whether the key may be left out."""
        return "default" in self._node

    def meant(self, value: Any) -> str:
        """Return how to write the valid value that a text or whole float means; else empty."""
        found = value
        if isinstance(value, str) and _PLAIN.fullmatch(value):
            found = json.loads(value)
        if isinstance(found, float) and found.is_integer() and not self._takes(found):
            found = int(found)
        return json.dumps(found) if found is not value and self._takes(found) else ""

    def _takes(self, value: Any) -> bool:
        """Whether a switch or number is valid there."""
        names = {bool: ("boolean",), int: ("integer", "number"), float: ("number",)}
        return any(
            node.get("type") in names.get(type(value), ())
            and node.get("minimum", value) <= value <= node.get("maximum", value)
            and node.get("exclusiveMinimum", -math.inf) < value
            and value < node.get("exclusiveMaximum", math.inf)
            for node in self._options(self._node)
        )

    def _options(self, node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the alternatives of a node, with references resolved."""
        if "$ref" in node:
            node = self._defs[node["$ref"].rpartition("/")[2]]
        for option in node.get("anyOf", node.get("oneOf", ())):
            yield from self._options(option)
        if "anyOf" not in node and "oneOf" not in node:
            yield node

    def _inner(self, part: int | str) -> Iterator[Mapping[str, Any] | None]:
        for node in self._options(self._node):
            is_list = node.get("type") == "array"
            if isinstance(part, int) is is_list:
                yield node.get("properties", {}).get(part)
                yield from _inside(node)

    def _words(self, node: Mapping[str, Any]) -> str:
        return " or ".join(dict.fromkeys(map(self._one, self._options(node))))

    def _one(self, node: Mapping[str, Any]) -> str:
        if "properties" in node:
            if list(node["properties"]) == ["_target_"]:
                return "a mapping as {_target_: my_package.Name, argument: 1}"
            return f"a mapping with keys of {', '.join(node['properties'])}"
        if "description" in node and node.get("type") != "object":
            return str(node["description"])
        choices = [repr(each) for each in node.get("enum", ())]
        if choices:
            return f"one of {', '.join(choices)}"
        return repr(node["const"]) if "const" in node else self._of_type(node)

    def _of_type(self, node: Mapping[str, Any]) -> str:
        kind = node.get("type")
        if kind in ("integer", "number"):
            return f"{'an integer' if kind == 'integer' else 'a number'}{_limits(node)}"
        if kind == "string":
            form = f" of the form {node['pattern']}" if "pattern" in node else ""
            return f"text{form}{_limits(node, ' characters')}"
        if kind in ("array", "object"):
            inner = next((self._words(each) for each in _inside(node)), "any value")
            one = "a list" if kind == "array" else "a mapping"
            return f"{one}{_limits(node, ' entries')}, each {inner}"
        return {"boolean": "true or false", "null": "null"}.get(str(kind), "any value")


def _inside(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of the entries of a list or of the values of a mapping."""
    yield from node.get("prefixItems", ())
    yield from node.get("patternProperties", {}).values()
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield node[key]


def _limits(node: Mapping[str, Any], unit: str = "") -> str:
    if "exclusiveMinimum" in node:
        node = {key: value for key, value in node.items() if key != "minimum"}
    limits = [f"{sign}{node[key]:.12g}" for key, sign in _LIMITS.items() if key in node]
    return f" ({', '.join(limits)}{unit})" if limits else ""
