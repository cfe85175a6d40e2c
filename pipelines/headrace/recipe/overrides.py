"""Overrides of recipes: `key=value`, `+key=value`, `~key`, as in Hydra."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from headrace.errors import RecipeError, nearest, shortened
from headrace.recipe.base import from_json, to_json, unique
from headrace.recipe.yaml_text import MAX_DEPTH, MAX_PLAIN_VALUES, joined, parsed

_SIGNS = ("++", "+", "~")
_NUMBERED = (
    "Entries of a list are numbered from 0: data.transforms[0].maximum=1. To add one, write the "
    "whole list."
)
MAX_CHARS = 64 * 1024
"""Longest overrides of a request, all of them together, in characters."""

MAX_OVERRIDES = 500
"""Most overrides of a request."""

MAX_VALUES = 2000
"""Most values in the overrides of a request."""

MAX_KEY_PARTS = 32
"""Most parts of a key, as `a.b` has two."""

MAX_KEY_CHARS = 500
"""Longest key, in characters."""

_ARGUMENTS = ("train", "args")
"""Key of a mapping whose own keys may hold dots; `args` is short for it."""

_COMMENT = re.compile(r"\s#")
_CHAR = r"[^.\[\]{}$'\"=\\]"
_PART = rf"(?!\s){_CHAR}+(?<!\s)"
_KEY = re.compile(rf"(?:{_PART}|\[{_PART}\])(?:\.{_PART}|\[{_PART}\])*")
_PARTS = re.compile(r"[^.\[\]]+")
_INDEX = re.compile(r"0|[1-9]\d*")
_BEFORE_VALUES = re.compile(r"[,\n\[{]|\$\{|(?<=[^\s,:\[{])\s")
_SEVERAL = re.compile(r"(choice|range|interval|glob|tag|sort|shuffle)\(.*\)|.*,.*", re.DOTALL)


class Override(NamedTuple):
    """An override, read."""

    sign: str
    """`++`, `+`, `~` or nothing."""
    key: str
    value: Any


def apply(config: Any, change: Override) -> None:
    """Apply an override to an OmegaConf configuration, in place; raise RecipeError if unfit."""
    sign, key, value = change
    parts = key_parts(key)
    path, above = ".".join(parts), ".".join(parts[:-1])
    try:
        _check_holders(config, key, parts)
        if sign == "~":
            _remove(config, key, parts)
            return
        holder = OmegaConf.select(config, above) if above else config
        if sign == "+" and isinstance(holder, DictConfig | ListConfig) and parts[-1] in holder:
            raise RecipeError(f"'+{key}' adds a key that exists", f"To change it: {key}=VALUE.")
        if parts[:-1] == _ARGUMENTS and not isinstance(holder, ListConfig):
            path, value = above, {parts[-1]: value}
        OmegaConf.update(config, path, value, merge=not isinstance(value, list), force_add=True)
    except (OmegaConfBaseException, ValueError, IndexError, TypeError, RecursionError) as error:
        why = str(error).partition("\n")[0]
        why = why.replace("DictConfig", "a mapping").replace("ListConfig", "a list")
        raise RecipeError(
            f"The override of '{key}' does not fit the recipe: {why}", _NUMBERED
        ) from None


def _check_holders(config: Any, key: str, parts: Sequence[str]) -> None:
    """Refuse a key that OmegaConf would add beside, or take for, another one."""
    for part in parts:
        if isinstance(config, ListConfig):
            if not _INDEX.fullmatch(part) or int(part) >= len(config):
                raise RecipeError(
                    f"'{key}' names the entry {part} of a list of {len(config)} entries", _NUMBERED
                )
        elif (
            f"[{part}]" in key
            and part.isdecimal()
            and (not isinstance(config, DictConfig) or part not in config)
        ):
            raise RecipeError(f"'{key}' names an entry of a list, but there is no list", _NUMBERED)
        elif (
            isinstance(config, DictConfig)
            and part not in config
            and part.lower() in [str(each).lower() for each in config if not isinstance(each, str)]
        ):
            raise RecipeError(
                f"'{key}' names the key {part} of a mapping, which is not text there",
                "Write a mapping, as in model.dims={0: 1}; its other keys stay.",
            )
        is_holder = isinstance(config, DictConfig | ListConfig)
        config = OmegaConf.select(config, part) if is_holder else None


def _remove(config: Any, key: str, parts: Sequence[str]) -> None:
    *above, name = parts
    holder = OmegaConf.select(config, ".".join(above)) if above else config
    if not isinstance(holder, DictConfig) or name not in holder:
        names = [str(each) for each in holder] if isinstance(holder, DictConfig) else []
        raise RecipeError(
            f"'~{key}' removes a key that does not exist",
            f"{nearest(name, names)} A key that is not in the file has its default. To change a "
            "list, write all of it: trainer.callbacks=[].",
        )
    del holder[name]


def key_parts(key: str) -> tuple[str, ...]:
    """Return the parts of a dotted key; `code[0]` and `[code]` have parts in brackets.

    `train.args.opt.lr`, for short `args.opt.lr`, has three: the name of an argument is one part.

    Raises:
        RecipeError: The key is malformed or too long.
    """
    parts = _PARTS.findall(key)
    is_short = len(key) <= MAX_KEY_CHARS and len(parts) <= MAX_KEY_PARTS
    if not is_short or not key.isprintable() or not _KEY.fullmatch(key):
        raise RecipeError(
            f"The key {shortened(repr(key))} is malformed",
            f"Write up to {MAX_KEY_PARTS} parts and {MAX_KEY_CHARS} printable characters, with a "
            "dot between parts and numbers of entries in brackets: data.transforms[0].maximum=1. "
            "Other keys need a mapping: evaluate.min_metrics={'a.b': 0.9}.",
        )
    if parts[0] == _ARGUMENTS[1]:
        parts.insert(0, _ARGUMENTS[0])
    _, dot, name = key.partition("args.")
    return (*_ARGUMENTS, name) if dot and tuple(parts[:2]) == _ARGUMENTS else tuple(parts)


def read_override(text: str) -> Override:
    """Return an override; Hydra's grammar, or else JSON or YAML, reads its value.

    Raises:
        RecipeError: It is malformed, its value cannot be read, or it names several values.
    """
    sign, key, value = parts_of(text)
    if sign == "~":
        return Override(sign, key, None)
    try:
        read = _value(joined(value))
        parsed(f"value: {json.dumps(to_json(read))}", is_plain=True)  # the limits of a recipe
        read = joined(read)
    except (YAMLError, RecursionError, ValueError) as error:
        raise RecipeError(
            f"The value of the override '{shortened(text)}' cannot be read: "
            f"{shortened(' '.join(str(error).split()))}",
            f"Put a text in quotes: {key}='a # b'.",
        ) from None
    except TypeError:  # a sweep
        raise RecipeError(
            f"The override '{shortened(text)}' names several values, and a run has one",
            f"A list has brackets, {key}=[{shortened(value)}]; a text with commas has quotes, "
            f"\"{key}='a,b'\". For a trial of each: headrace sweep RECIPE '{shortened(text)}', or "
            "in Airflow the DAG headrace_suite with this line in the field Overrides.",
        ) from None
    return Override(sign, key, read)


def in_hydra(words: str) -> Any:
    """Return Hydra's `Override` of a value.

    Raises:
        YAMLError: Its grammar does not cover the words, or they are too many for its parser.
    """
    if max(accumulate((c in "[{") - (c in "]}") for c in words), default=0) > MAX_DEPTH:
        raise YAMLError(f"it holds more than {MAX_DEPTH} lists and mappings inside one another")
    if words.count(",") > MAX_PLAIN_VALUES:
        raise YAMLError(f"it holds more than {MAX_PLAIN_VALUES} values")
    from hydra.core.override_parser import overrides_parser, overrides_visitor  # takes 0.1 s
    from hydra.errors import HydraException
    from hydra.grammar.gen import OverrideLexer, OverrideParser

    class Visitor(overrides_visitor.HydraOverrideVisitor):
        def visitDictContainer(self, ctx: Any) -> Any:  # noqa: N802  Hydra's takes the last of two
            pairs = [*ctx.getChildren()][1:-1:2]
            return unique(map(self.visitDictKeyValuePair, pairs))

    antlr: Any = OverrideLexer  # which has no types
    lexer = antlr.OverrideLexer(antlr.InputStream(f"key={words}"))
    parser: Any = OverrideParser.OverrideParser(antlr.CommonTokenStream(lexer))
    for each in (lexer, parser):
        each.removeErrorListeners()
        each.addErrorListener(overrides_visitor.HydraErrorListener())
    try:
        found = Visitor(overrides_parser.create_functions()).visit(parser.override())
        found.validate()
    except (HydraException, ValueError, RecursionError) as error:  # as of 5000 digits
        raise YAMLError(str(error)) from None
    return found


def as_override(key: str, value: Any) -> str:
    """Return the override that sets a key to a value."""
    return f"{key}={_written(value)}"


def _written(value: Any) -> str:
    if isinstance(value, str):  # https://hydra.cc/docs/1.3/advanced/override_grammar/basic
        return "'" + re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + (m[2] and r"\'"), value) + "'"
    if isinstance(value, list | tuple) and not _holds_keys(value):
        return f"[{', '.join(map(_written, value))}]"
    return str(value) if isinstance(value, float) else json.dumps(to_json(value))


def _holds_keys(value: Any) -> bool:
    """Whether a value holds a mapping with keys, which needs JSON: Hydra has no quoted keys."""
    inner = isinstance(value, list | tuple) and any(map(_holds_keys, value))
    return inner or (isinstance(value, Mapping) and bool(value))


def _value(words: str) -> Any:
    try:
        return in_hydra(words).value()
    except YAMLError:
        with suppress(ValueError, RecursionError):
            return from_json(json.loads(words, object_pairs_hook=unique))
        whole = parsed(f"value: {words}", is_plain=True)["value"]
        if isinstance(whole, dict | list) and not _COMMENT.search(words):
            return _of_node(yaml.compose(words, yaml.SafeLoader))
        if whole != words.strip():
            raise
    if names_several(words):
        raise TypeError
    return words.strip()


def _of_node(node: Any) -> Any:
    """Return the value of a list or mapping of YAML; Hydra reads the plain words in it."""
    if isinstance(node, yaml.MappingNode):
        return unique((_of_node(key), _of_node(each)) for key, each in node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_of_node(each) for each in node.value]
    if not node.value and not node.style:
        raise YAMLError("a value is missing; write null, or '' for an empty text")
    return node.value if node.style else _value(node.value)


def parts_of(text: str) -> tuple[str, str, str]:
    """Return sign, key and value as they are written; raise RecipeError if malformed."""
    sign = next((each for each in _SIGNS if text.startswith(each)), "")
    key, equals, value = text.removeprefix(sign).partition("=")
    if bool(equals) == (sign == "~") or not key:
        raise RecipeError(
            f"The override '{shortened(text)}' is not of the form key=value",
            "Write for example trainer.max_epochs=3; +key=value adds a key, ~key removes one.",
        )
    key_parts(key)
    return sign, key, value


def check_size(overrides: Sequence[str]) -> None:
    """Raise RecipeError for overrides beyond the limits of a request: too many or too long."""
    num_values = sum(len(_BEFORE_VALUES.findall(text)) for text in overrides)
    for what, count, most in (
        ("characters", sum(map(len, overrides)), MAX_CHARS),
        ("overrides", len(overrides), MAX_OVERRIDES),
        ("values", num_values, MAX_VALUES),
    ):
        if count > most:
            raise RecipeError(
                f"The overrides are {count:,} {what}; at most {most:,} are taken",
                "Write them into a recipe file; points of a suite into a CSV file: suite.file.",
            )


def names_several(value: str) -> bool:
    """Whether a text without quotes and brackets names several values in Hydra's grammar."""
    return _SEVERAL.fullmatch(value.strip()) is not None
