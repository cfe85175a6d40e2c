"""Recipes and sites from YAML: find the file, apply overrides, interpolate, validate.

A text is judged event by event before anything is built from it, so that neither an alias that
stands for millions of values nor a thousand brackets is ever unfolded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from yaml import YAMLError

from headrace.errors import RecipeError, SiteError, UserError, nearest
from headrace.recipe.recipe import Recipe
from headrace.recipe.schema import explain
from headrace.recipe.site import Site

Model = TypeVar("Model", bound=BaseModel)

MAX_CHARS = 256 * 1024
"""Longest file, in characters."""

MAX_VALUES = 10_000
"""Most values of a text, each alias counted as all that it stands for."""

MAX_DEPTH = 32
"""Most lists and mappings inside one another."""

MAX_SCALAR = 16 * 1024
"""Longest key or value, in characters."""

_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
)
_OPENS = yaml.MappingStartEvent | yaml.SequenceStartEvent
_CLOSES = yaml.MappingEndEvent | yaml.SequenceEndEvent

_SIGNS = ("++", "+", "~")
_NOWHERE = object()

BUILT_IN = Path(__file__).parent / "builtin"
"""Folder of the recipes and sites that come with headrace."""


def home() -> Path:
    """Headrace's own folder: `$HEADRACE_HOME`, or `.headrace` in the user's home folder."""
    return Path(os.environ.get("HEADRACE_HOME") or Path.home() / ".headrace").absolute()


def available(kind: str) -> dict[str, Path]:
    """Names of the `recipes` or `sites` that can be loaded, with their files; first match wins."""
    extra = os.environ.get(f"HEADRACE_{kind.upper()}_PATH", "")
    named = [Path(part) for part in extra.split(":") if part]
    found: dict[str, Path] = {}
    for folder in (*named, Path.cwd() / kind, home() / kind, BUILT_IN / kind):
        for file in sorted(folder.glob("*.yaml")):
            found.setdefault(file.stem, file)
    return found


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load and validate a recipe.

    Args:
        name_or_path: Name of a recipe, or the path of a YAML file.
        overrides: `key=value` with dotted keys, as in `trainer.max_epochs=3`. As in Hydra,
            `+key=value` adds a key that must not be there, `~key` takes one out that must.

    Raises:
        RecipeError: No such recipe, a wrong key or a wrong value.
    """
    path = locate("recipes", name_or_path)
    origin = " ".join([str(path), *(["with", *overrides] if overrides else [])])
    changes = [_parse_override(override) for override in overrides]
    content = _read(path, origin, changes, RecipeError)
    return parse(Recipe, {"name": path.stem, **content}, origin)


def load_site(name_or_path: str) -> Site:
    """Load and validate a site.

    Raises:
        SiteError: No such site, a wrong key or a wrong value.
    """
    path = locate("sites", name_or_path)
    content = _read(path, str(path), (), SiteError)
    return parse(Site, {"name": path.stem, **content}, str(path))


def parse(kind: type[Model], content: Mapping[str, Any], origin: str) -> Model:
    """Validate a mapping; errors name the key, the value and the nearest valid key."""
    error_type: type[UserError] = SiteError if kind is Site else RecipeError
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise error_type(*explain(error, kind, origin)) from None


def locate(folder: str, name_or_path: str) -> Path:
    """File of one of the `recipes` or `sites`, by its name or path."""
    error_type: type[UserError] = SiteError if folder == "sites" else RecipeError
    singular = folder.removesuffix("s")
    if name_or_path.endswith((".yaml", ".yml", ".json")):
        path = Path(name_or_path).expanduser()
        if path.is_file():
            return path
        raise error_type(
            f"The {singular} file '{name_or_path}' does not exist",
            f"Seen from {Path.cwd()}. Give an existing file or one of the names: "
            f"{', '.join(sorted(available(folder)))}.",
        )
    names = available(folder)
    if name_or_path in names:
        return names[name_or_path]
    raise error_type(f"There is no {singular} '{name_or_path}'", nearest(name_or_path, names))


def _read(
    path: Path, origin: str, changes: Sequence[_Change], error_type: type[UserError]
) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            config = OmegaConf.create(parsed(file.read(MAX_CHARS + 1)))
        for change in changes:
            _apply(config, change)
        content = OmegaConf.to_container(config, resolve=True)
    except (OmegaConfBaseException, YAMLError) as error:
        raise error_type(f"{origin} cannot be read: {error}") from None
    except UnicodeDecodeError as error:
        raise error_type(f"{path} is no text in UTF-8: {error}", "Save it as UTF-8.") from error
    except OSError as error:
        raise error_type(f"{path} cannot be read: {error.strerror or error}") from error
    if not isinstance(content, dict):
        raise error_type(f"{path} holds a {type(content).__name__}, not a mapping of keys")
    return {str(key): value for key, value in content.items()}


class _Change(NamedTuple):
    sign: str
    key: str
    value: Any


def _apply(config: Any, change: _Change) -> None:
    sign, key, value = change
    try:
        if sign == "~":
            _take_out(config, key)
            return
        if sign == "+" and OmegaConf.select(config, key, default=_NOWHERE) is not _NOWHERE:
            raise RecipeError(f"'+{key}' adds what is there", f"To change it: {key}=VALUE.")
        OmegaConf.update(config, key, value, force_add=True)
    except (OmegaConfBaseException, ValueError, IndexError, TypeError) as error:
        raise RecipeError(
            f"The override of '{key}' does not fit what is there: {error}",
            "Entries of a list are numbered: data.transforms[0].maximum=1.",
        ) from None


def _take_out(config: Any, key: str) -> None:
    parent, _, name = key.rpartition(".")
    holder = OmegaConf.select(config, parent) if parent else config
    if not isinstance(holder, DictConfig) or name not in holder:
        names = [str(each) for each in holder] if isinstance(holder, DictConfig) else []
        raise RecipeError(
            f"'~{key}' takes out what is not there",
            f"{nearest(name, names)} A key that the file leaves out has its default; a list is "
            "written anew: trainer.callbacks=[].",
        )
    del holder[name]


def _parse_override(text: str) -> _Change:
    sign = next((each for each in _SIGNS if text.startswith(each)), "")
    key, equals, value = text.removeprefix(sign).partition("=")
    if bool(equals) == (sign == "~") or not all(key.split(".")):
        raise RecipeError(
            f"The override '{text}' is not of the form key=value",
            "Write for example trainer.max_epochs=3. +key=value adds a key, ~key takes one out.",
        )
    if sign == "~":
        return _Change(sign, key, None)
    try:
        return _Change(sign, key, parsed(f"value: {value}", is_plain=True)["value"])
    except YAMLError as error:
        shown = text if len(text) < 200 else f"{text[:200]}…"
        raise RecipeError(f"The value of the override '{shown}' is not YAML: {error}") from None


def check_from_outside(overrides: Sequence[str]) -> None:
    """Refuse overrides that only those may give who may read what this account may.

    Raises:
        RecipeError: One sets `code`, holds an interpolation in any spelling, or is malformed.
    """
    for text in overrides:
        _, key, value = _parse_override(text)
        if key.split(".")[0] == "code":
            raise RecipeError(
                f"The override '{text}' sets 'code', which cannot be changed from Airflow",
                "Write it into a recipe file.",
            )
        if "${" in f"{key}={value!r}":
            raise RecipeError(
                f"The override '{text}' holds an interpolation",
                "From Airflow only plain values are taken; write interpolations into a recipe.",
            )


def parsed(text: str, *, is_plain: bool = False) -> Any:
    """Plain values of a YAML text, a mapping or list; interpolations stay as they are written.

    `is_plain` refuses all tags, anchors and aliases, not only those that name other types.

    Raises:
        YAMLError: It is no YAML, too large, or holds what is refused.
    """
    _Limits(is_plain).check(text)
    try:
        return OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OmegaConfBaseException, ValueError, RecursionError) as error:  # as of 5000 digits
        raise YAMLError(str(error)) from None


class _Limits:
    """Counts the values of a text."""

    def __init__(self, is_plain: bool) -> None:
        self._is_plain = is_plain
        self._counts = [0]
        self._anchors: list[str | None] = [None]
        self._sizes: dict[str | None, int] = {}
        self._num_documents = 0

    def check(self, text: str) -> None:
        if len(text) > MAX_CHARS:
            raise YAMLError(f"it has {len(text)} characters, at most {MAX_CHARS} are read")
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            self._take(event)
            if sum(self._counts) > MAX_VALUES:
                raise _at(event, f"more than {MAX_VALUES} values, aliases counted in full")
            if len(self._counts) - 1 > MAX_DEPTH:
                raise _at(event, f"more than {MAX_DEPTH} lists and mappings inside one another")

    def _take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._num_documents += 1
            if self._num_documents > 1:
                raise _at(event, "a second document; one is read")
        elif isinstance(event, yaml.NodeEvent):
            if len(self._counts) == 1 and not isinstance(event, _OPENS):
                raise _at(event, "a single value, not a mapping of keys")
            self._refuse(event)
            self._count(event)
        elif isinstance(event, _CLOSES):
            size, anchor = self._counts.pop() + 1, self._anchors.pop()
            self._counts[-1] += size
            self._sizes[anchor] = size

    def _count(self, event: yaml.NodeEvent) -> None:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self._anchors:
                raise _at(event, f"the alias '*{event.anchor}' stands inside what it stands for")
            self._counts[-1] += self._sizes.get(event.anchor, 1)
        elif isinstance(event, _OPENS):
            self._counts.append(0)
            self._anchors.append(event.anchor)
        else:
            self._counts[-1] += 1
            self._sizes[event.anchor] = 1

    def _refuse(self, event: yaml.NodeEvent) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None and (self._is_plain or tag not in _PLAIN_TAGS):
            raise _at(event, f"the tag '{tag}'; write plain values")
        if self._is_plain and event.anchor is not None:
            raise _at(event, f"the anchor or alias '{event.anchor}'; write the value itself")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_SCALAR:
            raise _at(event, f"a value of {len(event.value)} characters; the limit is {MAX_SCALAR}")


def _at(event: yaml.Event, what: str) -> YAMLError:
    line = cast("yaml.Mark", event.start_mark).line + 1
    return YAMLError(f"it holds {what} (line {line})")
