"""Recipes and sites from YAML: find the file, apply overrides, interpolate, validate."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from headrace.errors import RecipeError, SiteError, UserError, nearest, shortened, warn_once
from headrace.processes.working_folder import problem_of
from headrace.recipe.home import expanded, home
from headrace.recipe.site import Site
from headrace.recipe.unix_accounts import for_user

if TYPE_CHECKING:  # sites are read without the classes of recipes
    from headrace.recipe.recipe import Recipe


Model = TypeVar("Model", bound=BaseModel)
Content = TypeVar("Content")

BUILT_IN = Path(__file__).parent / "builtin"
"""Folder of the recipes and sites that come with headrace."""


_ERRORS: dict[str, type[UserError]] = {"recipes": RecipeError, "sites": SiteError}
_WHOLE = frozenset(("folder", "roles", "tiers"))
"""Keys of a whole site; a file with fewer changes the built-in site of its name."""


def available(kind: str) -> dict[str, Path]:
    """Return names of the `recipes` or `sites` that can be loaded, with their files."""
    files = reversed([*_files(kind)])
    found = {file.stem: file for file, problem in files if not problem}
    return {name: found[name] for name in sorted(found)}


def _files(kind: str) -> Iterator[tuple[Path, str]]:
    """Yield files of recipes or sites, the first of a name first, and why one is not used."""
    extra = os.environ.get(f"HEADRACE_{kind.upper()}_PATH", "")
    named = [Path(part) for part in extra.split(":") if part]
    places = [*named, Path.cwd() / kind, home() / kind, BUILT_IN / kind]
    for index, folder in enumerate(places):
        with _blaming(folder, str(folder), _ERRORS[kind]):
            for file in sorted(folder.glob("*.yaml")):
                yield file, problem_of(file) if index == len(named) else ""


def written(kind: str) -> dict[str, Mapping[str, Any]]:
    """Return the content of all `recipes` or `sites`; a file is read again only if it changed.

    Files that cannot be read are empty here; choosing one raises the error.
    """
    found = {}
    for name, file in available(kind).items():
        with suppress(OSError):
            found[name] = read_once(_written, file)
    return found


def read_once(read: Callable[[str], Content], file: Path) -> Content:
    """Return what `read` makes of a file by its path; it is called again if the file changed."""
    stat = file.stat()
    content: Content = _read_as_of(read, str(file), stat.st_ino, stat.st_mtime_ns, stat.st_size)
    return content


@lru_cache(maxsize=256)
def _read_as_of(read: Callable[[str], Any], file: str, *_version: int) -> Any:
    return read(file)


def _written(file: str) -> Mapping[str, Any]:
    from yaml import YAMLError

    from headrace.recipe.yaml_text import parsed

    with suppress(UnicodeDecodeError, YAMLError):
        content = parsed(Path(file).read_text(encoding="utf-8"))
        return content if isinstance(content, Mapping) else {}
    return {}


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load and validate a recipe, by its name or the path of a YAML file or a run's `recipe.json`.

    `overrides` are `key=value` with dotted keys, as in `trainer.max_epochs=3`. As in Hydra,
    `+key=value` adds a key that must not be there, `~key` takes one out that must. The folder of
    the file is added to `code` if targets need modules there.

    Raises:
        RecipeError: No such recipe, a wrong key or a wrong value.
    """
    from headrace.recipe.fence import with_code_beside
    from headrace.recipe.recipe import Recipe

    path, origin, config = _changed(name_or_path, overrides)
    content = {"name": path.stem, **_without_variables(config, origin)}
    recipe = parse(Recipe, content, origin)
    is_of_run = path.suffix == ".json"
    return recipe if is_of_run else with_code_beside(recipe, path.absolute().parent)


def source_of(name_or_path: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return a recipe before interpolation, without its suite: the source of recipes of trials.

    Environment variables are resolved, because trials may be made on another machine.

    Raises:
        RecipeError: As for `load_recipe`.
    """
    from omegaconf import OmegaConf

    from headrace.recipe.interpolation import with_environment

    path, origin, config = _changed(name_or_path, overrides)
    with _blaming(path, origin, RecipeError):
        content = with_environment(OmegaConf.to_container(config, resolve=False))
    code = load_recipe(name_or_path, overrides).code
    beside = {"code": list(code)} if code else {}
    return {"name": path.stem, **{key: content[key] for key in content if key != "suite"}, **beside}


def with_kept(source: Mapping[str, Any], loaded: Recipe, kept: Recipe) -> dict[str, Any]:
    """Return a source with the values that a run keeps for loaded ones, such as absolute paths."""
    from omegaconf import OmegaConf

    from headrace.recipe.difference import differences
    from headrace.recipe.overrides import Override, apply

    config = OmegaConf.create(dict(source))
    for change in differences(loaded, kept):
        if change.after and not change.key.startswith("suite"):
            apply(config, Override("", change.key, json.loads(change.after)))
    if kept.code:  # with the folders that were added
        apply(config, Override("", "code", list(kept.code)))
    content = OmegaConf.to_container(config, resolve=False)
    return cast("dict[str, Any]", content)


def recipe_from(source: Mapping[str, Any], values: Mapping[str, Any], origin: str) -> Recipe:
    """Return the recipe of a source (see `source_of`) with other values at some dotted keys.

    Raises:
        RecipeError: A wrong key or a wrong value; `origin` names the file.
    """
    from omegaconf import OmegaConf

    from headrace.recipe.overrides import Override, apply
    from headrace.recipe.recipe import Recipe

    config = OmegaConf.create(dict(source))
    for key, value in values.items():
        apply(config, Override("", key, value))
    return parse(Recipe, _without_variables(config, origin), origin)


def _without_variables(config: Any, origin: str) -> dict[str, Any]:
    """Return the plain values of a recipe without its variables.

    A variable is a key that recipes do not have and that an interpolation names, as `${rate}`.
    """
    from omegaconf import OmegaConf

    from headrace.recipe.recipe import Recipe

    content = _resolved(config, origin, RecipeError)
    named = set(_VARIABLE.findall(str(OmegaConf.to_container(config, resolve=False))))
    return {key: content[key] for key in content if key in Recipe.model_fields or key not in named}


def load_site(name_or_path: str, user: str | None = None) -> Site:
    """Load and validate a site, for a user of Airflow or the account of this process: `for_user`.

    A file with the name of a built-in site that lacks `folder`, `roles` or `tiers` is merged into
    that site: mappings key by key, other values replaced.

    Raises:
        SiteError: No such site, a wrong key or a wrong value, or it is not for this user.
    """
    path = locate("sites", name_or_path)
    content = _resolved(_site_content(path, name_or_path), str(path), SiteError)
    site = for_user(parse(Site, {"name": path.stem, **content}, str(path)), user)
    if not site.is_fenced and path.suffix != ".json":
        warn_once(f"'is_fenced' in {path} has no effect: it depends on who asks for a run.")
    return site.model_copy(update={"folder": str(expanded(site.folder)), "is_fenced": True})


def _site_content(path: Path, asked: str) -> Any:
    """Return the content of a site's file, merged into the built-in site that it changes."""
    from omegaconf import OmegaConf

    config, built_in = _read(path, str(path), SiteError), BUILT_IN / "sites" / path.name
    if path == built_in or not built_in.is_file():
        return config
    changes = OmegaConf.to_container(config, resolve=False) or {}
    is_whole = not isinstance(changes, dict) or changes.keys() >= _WHOLE
    if asked == path.stem and (is_whole or path.parent != home() / "sites"):
        warn_once(f"The site '{asked}' is {'' if is_whole else 'changed by '}{path}.")
    with _blaming(path, str(path), SiteError):
        return config if is_whole else OmegaConf.merge(_read(built_in, "", SiteError), changes)


def site_now(name_or_path: str) -> Site:
    """Return a site as `load_site`; it is read again only if its file changed."""
    file = locate("sites", name_or_path).absolute()
    with _blaming(file, str(file), SiteError):
        return read_once(load_site, file)


def parse(kind: type[Model], content: Mapping[str, Any], origin: str) -> Model:
    """Validate a mapping; errors name the key, the value and the nearest valid key."""
    error_type: type[UserError] = SiteError if kind is Site else RecipeError
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        from headrace.recipe.schema import explain  # what few need takes time to load

        raise error_type(*explain(error, kind, origin)) from None


def locate(folder: str, name_or_path: str) -> Path:
    """Return the file of one of the `recipes` or `sites`, by its name or path."""
    error_type = _ERRORS[folder]
    singular = folder.removesuffix("s")
    if name_or_path.endswith((".yaml", ".yml", ".json")):
        path = Path(name_or_path).expanduser()
        with _blaming(path, name_or_path, error_type):
            if path.is_file():
                return path
        raise error_type(
            f"The {singular} file '{name_or_path}' does not exist",
            f"The working folder is {Path.cwd()}. Give an existing file or one of the names: "
            f"{', '.join(sorted(available(folder)))}.",
        )
    found = [(file, problem) for file, problem in _files(folder) if file.stem == name_or_path]
    for file, problem in found:
        if not problem:
            built_in = BUILT_IN / "recipes" / file.name  # `load_site` has its own warning
            if folder == "recipes" and file != built_in and built_in.is_file():
                warn_once(f"The recipe '{name_or_path}' is {file}, not the built-in one.")
            return file
        warn_once(f"{file} is not used: {problem}. To use it, give its path instead of its name.")
    names = available(folder)
    raise error_type(f"There is no {singular} '{name_or_path}'", nearest(name_or_path, names))


def _changed(name_or_path: str, overrides: Sequence[str]) -> tuple[Path, str, Any]:
    """Return the file of a recipe, its name in errors, and its content with the overrides."""
    from headrace.recipe.overrides import apply, read_override

    path = locate("recipes", name_or_path)
    changed = f" with {shortened(' '.join(overrides))}" if overrides else ""
    origin = f"{path}{changed}"
    changes = [read_override(override) for override in overrides]
    config = _read(path, origin, RecipeError)
    for change in changes:
        apply(config, change)
    return path, origin, config


def _read(path: Path, origin: str, error_type: type[UserError]) -> Any:
    from omegaconf import OmegaConf

    from headrace.recipe.yaml_text import MAX_CHARS, parsed, parsed_json

    with _blaming(path, origin, error_type), path.open(encoding="utf-8") as file:
        if path.suffix != ".json":
            return OmegaConf.create(parsed(file.read(MAX_CHARS + 1)))
        keeps = path.name.endswith(".source.json")  # of a suite: interpolations are of its trials
        return OmegaConf.create(parsed_json(file.read(), interpolates=keeps))


def _resolved(config: Any, origin: str, error_type: type[UserError]) -> dict[str, Any]:
    from headrace.recipe.interpolation import resolved

    with _blaming(Path(), origin, error_type):
        content = resolved(config)
    if not isinstance(content, dict):
        raise error_type(f"{origin} holds a {type(content).__name__}, not a mapping of keys")
    return {str(key): value for key, value in content.items()}


_VARIABLE = re.compile(r"\$\{(\w+)")


@contextmanager
def _blaming(path: Path, origin: str, error_type: type[UserError]) -> Iterator[None]:
    """Raise errors of reading a text as errors that name it."""
    try:
        yield
    except _of_texts() as error:
        raise error_type(f"{origin} cannot be read: {error}") from None
    except UnicodeDecodeError as error:
        raise error_type(f"{path} is not UTF-8: {error}", "Save it as UTF-8.") from error
    except OSError as error:
        raise error_type(f"{path} cannot be read: {error.strerror or error}") from error


def _of_texts() -> tuple[type[Exception], ...]:
    """Return the error classes of OmegaConf and YAML."""
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    return OmegaConfBaseException, YAMLError
