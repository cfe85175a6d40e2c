"""Parse YAML to plain values; limits are checked node by node, before any value is built."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from headrace.errors import shortened
from headrace.recipe.base import from_json, unique

MAX_CHARS = 256 * 1024
"""Longest file, in characters."""

MAX_VALUES = 10_000
"""Most values of a text; an alias counts as all its values."""

MAX_PLAIN_VALUES = 100_000
"""Most values of a text without aliases: one long list is harmless."""

MAX_DEPTH = 32
"""Most lists and mappings inside one another."""

MAX_SCALAR = 16 * 1024
"""Longest key or value, in characters."""

MAX_BITS = 128
"""Longest whole number."""

MAX_INTERPOLATIONS = 1000
"""Most interpolations of a text."""

MAX_NESTED = 8
"""Most interpolations inside one another."""

_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
)


def parsed(text: str, *, is_plain: bool = False) -> Any:
    """Return the plain values of a YAML text, a mapping or list; interpolations stay as text.

    `is_plain` refuses all tags, anchors and aliases, not only those that name other types.

    Raises:
        YAMLError: The text is not YAML, too large, or holds values that are refused.
    """
    return deepcopy(_parsed(text, is_plain))


@lru_cache(maxsize=16)
def _parsed(text: str, is_plain: bool) -> Any:
    """Parse a text; a run reads it several times, with and without overrides."""
    if len(text) > MAX_CHARS:
        raise YAMLError(f"it has {len(text)} characters, at most {MAX_CHARS} are read")
    with _named():
        return _plain(_Loader(text, is_plain).get_single_data() or {})


def parsed_json(text: str, *, interpolates: bool) -> Any:
    """Return the plain values of a text of `to_json`; raise YAMLError if it is refused."""
    with _named():
        content = from_json(json.loads(text, object_pairs_hook=unique))
        return _plain(content if interpolates else _each(content, _escaped))


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except LookupError as error:  # as of !!bool x
        raise YAMLError(f"it holds a value that is none of its tag: {error}") from None
    except (OmegaConfBaseException, ValueError, RecursionError) as error:  # as of 5000 digits
        raise YAMLError(str(error)) from None


def _plain(content: Any) -> Any:
    return joined(OmegaConf.to_container(OmegaConf.create(content), resolve=False))


class _Loader(get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's loader, within limits; it checks all keys for doubles, not only texts."""

    def __init__(self, text: str, is_plain: bool) -> None:
        super().__init__(text)
        self._is_plain = is_plain
        self._most = MAX_PLAIN_VALUES if is_plain else MAX_VALUES
        self._depth = self._num_values = self._num_interpolations = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        event, before = self.peek_event(), self._num_values
        opens = isinstance(event, yaml.CollectionStartEvent)
        if parent is None and not opens:
            raise _at(event, "a single value, not a mapping of keys")
        self._refuse(event)
        self._depth += opens
        if self._depth > MAX_DEPTH:
            raise _at(event, f"more than {MAX_DEPTH} lists and mappings inside one another")
        node: yaml.Node = super().compose_node(parent, index)
        self._depth -= opens
        if isinstance(event, yaml.AliasEvent) and node not in self._sizes:
            raise _at(event, f"the alias '*{event.anchor}' stands inside what it stands for")
        self._num_values += self._sizes.get(node, 1)
        if self._num_values > self._most:
            raise _at(event, f"more than {self._most} values, aliases counted in full")
        self._sizes[node] = self._num_values - before
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        unique((self.construct_object(key), None) for key in keys if key.tag in _PLAIN_TAGS)
        return super().construct_mapping(node, deep=deep)

    def _refuse(self, event: yaml.NodeEvent) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None and (self._is_plain or tag not in _PLAIN_TAGS):
            raise _at(event, f"the tag '{tag}'; write plain values")
        if self._is_plain and event.anchor is not None:
            raise _at(event, f"the anchor or alias '{event.anchor}'; write the value itself")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_SCALAR:
            raise _at(event, f"a value of {len(event.value)} characters; the limit is {MAX_SCALAR}")
        if isinstance(event, yaml.ScalarEvent) and "${" in event.value:
            self._num_interpolations += event.value.count("${")
            if self._num_interpolations > MAX_INTERPOLATIONS:
                raise _at(event, f"more than {MAX_INTERPOLATIONS} interpolations")
            if _nested(event.value) > MAX_NESTED:
                raise _at(event, f"more than {MAX_NESTED} interpolations inside one another")


def joined(content: Any) -> Any:
    """Plain values with each pair of surrogates, as JSON writes some characters, as its character.

    Raises:
        ValueError: There is half of a pair, which no file has in UTF-8, or too long a whole number.
    """
    return _each(content, _joined)


def _joined(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError(f"it holds a whole number of {value.bit_length()} bits; "
                         f"the limit is {MAX_BITS}")  # fmt: skip
    try:
        is_text = isinstance(value, str)
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le") if is_text else value
    except UnicodeDecodeError:
        what = f"it holds {shortened(ascii(value))}, which has half of a character"
        raise ValueError(f"{what} (a lone surrogate, or bytes that are not UTF-8)") from None


def _escaped(value: Any) -> Any:
    """Return a text with its interpolations escaped; keys cannot hold any."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _each(content: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(content, dict):
        return unique((_joined(key), _each(value, change)) for key, value in content.items())
    if isinstance(content, list):
        return [_each(value, change) for value in content]
    return change(content)


def _nested(text: str) -> int:
    """Return the depth of nested interpolations, as if each `}` closed one."""
    depth = most = 0
    for sign in re.findall(r"\$\{|\}", text):
        depth = depth + 1 if sign == "${" else max(0, depth - 1)
        most = max(most, depth)
    return most


def _at(event: yaml.Event, what: str) -> YAMLError:
    line = cast("yaml.Mark", event.start_mark).line + 1
    return YAMLError(f"it holds {what} (line {line})")
