"""The sites of a suite over several, loaded and checked before it begins."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headrace.clusters.images import on_site
from headrace.errors import HeadraceError, SiteError, UserError
from headrace.files.layout import SiteFolder
from headrace.files.machine import free_bytes
from headrace.objects.store import is_remote, read_manifest_at
from headrace.recipe.dataset import DatasetSpec
from headrace.recipe.fit import check_role
from headrace.recipe.load import available, load_recipe, load_site, locate
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.suite import SuiteSpec
from headrace.recipe.targets import check_targets
from headrace.recipe.teams import check_user
from headrace.runs.parts import SuiteSite
from headrace.runs.resolve import resolve
from headrace.states import DRIVER_ROLE

_LIFETIME_S = 7 * 86400.0
_FILES = (".yaml", ".yml", ".json")


def asked_sites(
    recipe: str, overrides: Sequence[str], sites: Sequence[str] | None
) -> tuple[str, tuple[str, ...]]:
    """Return the site of a suite, and the overrides with all its sites if there are several.

    Args:
        recipe: Name or file of the recipe.
        overrides: Changes to it.
        sites: Names or files, also with commas between them; they replace `suite.sites` of the
            recipe. None or empty: these, or `laptop`.

    Raises:
        UserError: All names are empty.
    """
    names = [name for each in sites or () for part in each.split(",") if (name := part.strip())]
    if sites and not names:
        valid = f"Valid: {', '.join(available('sites'))}, or the YAML file of a site."
        raise UserError(f"--site is '{','.join(sites)}', without a name", valid)
    if len(names) > 1:
        return names[0], (*overrides, f"suite.sites=[{','.join(names)}]")
    suite = load_recipe(recipe, overrides).suite
    known = suite.sites if suite else ()
    if names:
        return names[0], (*overrides, "suite.sites=[]") if known else (*overrides,)
    return known[0] if known else "laptop", (*overrides,)


def check_one_site(site: str) -> None:
    """Refuse several sites for what is not a suite.

    Raises:
        UserError: There are commas between their names.
    """
    if "," in site:
        raise UserError(
            f"--site is '{site}', several sites, but only a suite runs on several",
            "Name one; or run its trials: headrace sweep RECIPE --site A,B.",
        )


def over_sites(recipe: Recipe, site: Site, sites: Mapping[str, SuiteSite]) -> tuple[Recipe, Site]:
    """Return recipe and site as a suite keeps them; over several sites with the driver's role.

    Raises:
        SiteError: The site of the run is not the first of them, or has a role of that name.
    """
    first, *others = sites
    if first != site.name:
        raise SiteError(
            f"suite.sites begins with '{first}', but the site of the run is '{site.name}'",
            f"Name the same: --site {','.join(sites)}; or only one: suite.sites=[].",
        )
    suite = (recipe.suite or SuiteSpec()).model_copy(update={"sites": (*sites,) if others else ()})
    recipe = recipe.model_copy(update={"suite": suite})
    if not others:
        return recipe, site
    if DRIVER_ROLE in site.roles:
        raise SiteError(
            f"Site '{site.name}' has a role '{DRIVER_ROLE}', and a suite over several sites adds a "
            "role of this name to its first site",
            "Rename it in the site file, or name another site first.",
        )
    driver = Role(backend="local", kind="pool", lifetime=_LIFETIME_S)
    return recipe, site.model_copy(update={"roles": {**site.roles, DRIVER_ROLE: driver}})


def suite_sites(
    recipe: Recipe, user: str | None, by: str, *, is_from_terminal: bool
) -> dict[str, SuiteSite]:
    """Return the sites of a suite by name, in the order of `suite.sites`, resolved and checked.

    Args:
        recipe: The suite's, as loaded.
        user: User of Airflow; None for the account of this process.
        by: The requester, as in `allowed_users`.
        is_from_terminal: Whether the request comes from a terminal.

    Raises:
        SiteError: One of the sites cannot be used; the message has all that cannot, and why.
    """
    found, problems = dict[str, SuiteSite](), list[str]()
    for place, asked in enumerate(recipe.suite.sites if recipe.suite else ()):
        try:
            each = _suite_site(recipe, place, user, by, is_from_terminal=is_from_terminal)
            if each.site.name in found:
                raise UserError(f"it is site '{each.site.name}', which is named twice")
            problems += (f"{asked}: {why}" for why in _lacking(recipe, each.site))
            found[each.site.name] = each
        except HeadraceError as error:
            problems.append(f"{asked}: {error.what}")
    if problems:
        listed = "\n  ".join(problems)
        raise SiteError(
            f"suite.sites has sites that this suite cannot use:\n  {listed}",
            "Correct them, or leave them out of suite.sites. `headrace site check` looks at one.",
        )
    return found


def _suite_site(
    recipe: Recipe, place: int, user: str | None, by: str, *, is_from_terminal: bool
) -> SuiteSite:
    asked = (recipe.suite or SuiteSpec()).sites[place]
    is_file = asked.endswith(_FILES)
    if is_file and not is_from_terminal:
        raise UserError("it is a file; in Airflow sites have names")
    site = load_site(asked, user)
    check_user(site, by)
    resolved, site = resolve(
        at_site(recipe, site), site, "suite", is_from_terminal=is_from_terminal
    )
    check_role(resolved, site)
    check_targets(resolved, site)
    asked = str(locate("sites", asked).absolute()) if is_file else asked
    return SuiteSite(asked=asked, site=site, place=place)


def at_site(recipe: Recipe, site: Site, packed: str = "") -> Recipe:
    """Return a suite's recipe with the place of the dataset, or of its copy, for a site.

    Args:
        recipe: The suite's.
        site: The site.
        packed: Folder or URL of the packed dataset; empty: as in the recipe.
    """
    dataset = recipe.dataset
    if dataset is None:
        return recipe
    place = packed or dataset.path or dataset.name
    if not is_remote(place):
        place = str(
            SiteFolder(Path(site.folder).expanduser().absolute()).datasets / Path(place).name
        )
    return recipe.model_copy(update={"dataset": DatasetSpec(name=dataset.name, path=place)})


def _lacking(recipe: Recipe, site: Site) -> Iterator[str]:
    """Yield what a site lacks for the trials of a suite."""
    folder = Path(site.folder).expanduser()
    place = _nearest(folder)
    if not os.access(place, os.W_OK | os.X_OK):
        yield f"its folder {folder} cannot be written on this machine"
    for name, source in site.secrets.items():
        if not source.startswith("file:"):
            yield f"its secret {name} is {source}: the process of its part can only read file:PATH"
    for container in site.roles[recipe.train.role].containers:
        is_there = Path(on_site(container, folder).image).exists()
        if container.is_pulled and not is_there and shutil.which("apptainer") is None:
            yield f"it has no image {container.image}, and this machine no apptainer to pull it"
    path, copy = recipe.dataset_path, Path(at_site(recipe, site).dataset_path or "")
    is_here = path is not None and not is_remote(path)
    if path is None or (is_here and (copy.exists() or Path(path).is_relative_to(folder))):
        return
    manifest = read_manifest_at(path, site.s3)
    num_bytes, free = sum(each.num_bytes for each in manifest.shards), free_bytes(place)
    if is_here and free < num_bytes:
        yield f"the dataset has {num_bytes:,} bytes, but its folder {folder} only {free:,} free"


def why_no_folder(site: Site) -> str:
    """Return why the folder of a site cannot be made now; empty if it can, or exists."""
    place = _nearest(Path(site.folder).expanduser())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".headrace-", dir=place))
    except OSError as error:
        return f"its folder {site.folder} cannot be written: {error.strerror or error}"
    return ""


def _nearest(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if os.path.exists(each))
