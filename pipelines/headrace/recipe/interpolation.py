"""Resolve interpolations `${…}` of recipes and sites, within limits."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import OmegaConf
from omegaconf.grammar_parser import parse
from yaml import YAMLError

START = "${"

MAX_WORK = 100_000
"""Most work of resolving all interpolations, in plain values."""

MAX_COMPOSED = 16
"""Most interpolations of names that hold interpolations, as in `${models.${name}}`."""

_OF_ONE = 30
"""Work of an interpolation, in plain values."""

_OF_CHARS = 100
"""So many characters count as a value."""

_NAMES = re.compile(r"(\.*)([^\s${}:,'\"()\\]+)")
_RESOLVERS = re.compile(r"\$\{([^:${}]*:?)")
_OF_ENVIRONMENT = {"oc.env:", "oc.decode:"}


def resolved(config: Any) -> Any:
    """Return the plain values of a configuration with its interpolations resolved.

    Raises:
        YAMLError: They are too much work: each of `a: ${b}${b}`, `b: ${c}${c}`, … doubles it.
        OmegaConfBaseException: An interpolation has no value.
    """
    estimate = _Estimate(OmegaConf.to_container(config, resolve=False))
    if estimate.work(()) > MAX_WORK or estimate.num_composed > MAX_COMPOSED:
        raise YAMLError("its interpolations stand for too much; write plain values")
    try:
        return OmegaConf.to_container(config, resolve=True)
    except RecursionError:
        raise YAMLError("its interpolations lead on without end") from None


class _Estimate:
    """Estimates the work of interpolations before any is resolved; an upper bound for most."""

    def __init__(self, content: Any) -> None:
        self._root = content
        self._known: dict[tuple[Any, ...], int] = {}
        self.num_composed = 0

    def work(self, path: tuple[Any, ...]) -> int:
        """Return the work of the value at a path, in plain values."""
        if path not in self._known:
            self._known[path] = 0  # OmegaConf reports a cycle
            value = self._value(path)
            if isinstance(value, str):
                own = 1 + len(value) // _OF_CHARS
                self._known[path] = own + (self._followed(value, path) if START in value else 0)
            else:
                keys = range(len(value)) if isinstance(value, list) else value
                inner = keys if isinstance(value, list | dict) else ()
                self._known[path] = 1 + sum(self.work((*path, key)) for key in inner)
        return self._known[path]

    def _followed(self, text: str, path: tuple[Any, ...]) -> int:
        self.num_composed += len(re.findall(r"\$\{[\w.\[\]-]*\$\{", text))
        work = _OF_ONE * text.count(START)
        for dots, name in _NAMES.findall(text):
            start = path[: max(0, len(path) - len(dots))] if dots else ()
            found = self._at(start, name)
            if found is not None and found != path[: len(found)]:
                work += self.work(found)
            if work > MAX_WORK:
                break
        return work

    def _at(self, start: tuple[Any, ...], name: str) -> tuple[Any, ...] | None:
        """Return the path of the value of a name; None if there is no such value."""
        value, path = self._value(start), start
        for part in re.findall(r"[^.\[\]]+", name):
            key = int(part) if isinstance(value, list) and part.isdecimal() else part
            try:
                value, path = value[key], (*path, key)
            except (KeyError, IndexError, TypeError):
                return None
        return path

    def _value(self, path: tuple[Any, ...]) -> Any:
        value = self._root
        for key in path:
            value = value[key]
        return value


def with_environment(value: Any) -> Any:
    """Return plain values with environment variables resolved; other and mixed ones stay.

    Raises:
        OmegaConfBaseException: A variable is not set and has no default.
    """
    if isinstance(value, dict):
        return {key: with_environment(each) for key, each in value.items()}
    if isinstance(value, list):
        return [with_environment(each) for each in value]
    if not isinstance(value, str) or START not in value:
        return value
    parts = [part.getText() for part in parse(value).getChild(0).getChildren()]
    if len(parts) == 1:
        return _known(parts[0])
    return "".join(str(_known(part)) for part in parts)


def _known(part: str) -> Any:
    resolvers = set(_RESOLVERS.findall(part)) if part.startswith(START) else set()
    if "oc.env:" not in resolvers or not resolvers <= _OF_ENVIRONMENT:
        return part
    value = OmegaConf.create({"value": part})["value"]
    return value.replace(START, rf"\{START}") if isinstance(value, str) else value
