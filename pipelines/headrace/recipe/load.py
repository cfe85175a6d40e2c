"""Recipes and sites from YAML: find the file, apply overrides, interpolate, validate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from yaml import YAMLError

from headrace.errors import RecipeError, SiteError, UserError, nearest
from headrace.recipe.explain import explain
from headrace.recipe.overrides import Override, parse_override
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.yaml_text import MAX_CHARS, parsed

Model = TypeVar("Model", bound=BaseModel)

BUILT_IN = Path(__file__).parent / "builtin"
"""Folder of the recipes and sites that come with headrace."""


def home() -> Path:
    """Headrace's own folder: `$HEADRACE_HOME`, or `.headrace` in the user's home folder."""
    return Path(os.environ.get("HEADRACE_HOME") or Path.home() / ".headrace").absolute()


def search_folders(kind: str) -> tuple[Path, ...]:
    """Folders searched for a name, first match wins.

    Args:
        kind: `recipes` or `sites`.
    """
    extra = os.environ.get(f"HEADRACE_{kind.upper()}_PATH", "")
    named = tuple(Path(part) for part in extra.split(":") if part)
    return (*named, Path.cwd() / kind, home() / kind, BUILT_IN / kind)


def available(kind: str) -> dict[str, Path]:
    """Names that can be loaded, with their files.

    Args:
        kind: `recipes` or `sites`.
    """
    found: dict[str, Path] = {}
    for folder in search_folders(kind):
        for file in sorted(folder.glob("*.yaml")):
            found.setdefault(file.stem, file)
    return found


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load and validate a recipe.

    Args:
        name_or_path: Name of a recipe, or the path of a YAML file.
        overrides: `key=value` with dotted keys, as in `trainer.max_epochs=3`.

    Raises:
        RecipeError: No such recipe, a wrong key or a wrong value.
    """
    return _load(Recipe, "recipes", name_or_path, overrides, RecipeError)


def load_site(name_or_path: str, overrides: Sequence[str] = ()) -> Site:
    """Load and validate a site.

    Raises:
        SiteError: No such site, a wrong key or a wrong value.
    """
    return _load(Site, "sites", name_or_path, overrides, SiteError)


def parse(kind: type[Model], content: Mapping[str, Any], origin: str) -> Model:
    """Validate a mapping; errors name the key, the value and the nearest valid key.

    Raises:
        RecipeError: For recipes.
        SiteError: For sites.
    """
    error_type: type[UserError] = SiteError if kind is Site else RecipeError
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise error_type(*explain(error, kind, origin)) from None


def _load(
    kind: type[Model],
    folder: str,
    name_or_path: str,
    overrides: Sequence[str],
    error_type: type[UserError],
) -> Model:
    path = locate(folder, name_or_path)
    content = _read(path, overrides, error_type)
    content.setdefault("name", path.stem)
    return parse(kind, content, _origin(path, overrides))


def _origin(path: Path, overrides: Sequence[str]) -> str:
    return f"{path} with {' '.join(overrides)}" if overrides else str(path)


def locate(folder: str, name_or_path: str) -> Path:
    """File of a recipe or site.

    Args:
        folder: `recipes` or `sites`.
        name_or_path: Name, or path of a YAML file.

    Raises:
        RecipeError: No such recipe.
        SiteError: No such site.
    """
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


def _read(path: Path, overrides: Sequence[str], error_type: type[UserError]) -> dict[str, Any]:
    changes = [parse_override(override, error_type) for override in overrides]
    try:
        config = OmegaConf.create(parsed(_text(path)))
        for change in changes:
            _apply(config, change, error_type)
        content = OmegaConf.to_container(config, resolve=True)
    except (OmegaConfBaseException, YAMLError) as error:
        raise error_type(f"{_origin(path, overrides)} cannot be read: {error}") from None
    except UnicodeDecodeError as error:
        raise error_type(f"{path} is no text in UTF-8: {error}", "Save it as UTF-8.") from error
    except OSError as error:
        raise error_type(f"{path} cannot be read: {error.strerror or error}") from error
    if not isinstance(content, dict):
        raise error_type(f"{path} holds a {type(content).__name__}, not a mapping of keys")
    return {str(key): value for key, value in content.items()}


def _apply(config: Any, change: Override, error_type: type[UserError]) -> None:
    try:
        OmegaConf.update(config, change.key, change.value, force_add=True)
    except (OmegaConfBaseException, ValueError, IndexError, TypeError) as error:
        raise error_type(
            f"The override of '{change.key}' does not fit what is there: {error}",
            "Entries of a list are numbered: data.transforms[0].maximum=1.",
        ) from None


def _text(path: Path) -> str:
    """The text of a file, cut where it is longer than any that is read."""
    with path.open(encoding="utf-8") as file:
        return file.read(MAX_CHARS + 1)
