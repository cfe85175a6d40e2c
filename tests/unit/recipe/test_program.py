"""Scripts, modules and commands in place of a model: found as Python finds them, or refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import RecipeError
from headrace.recipe.load import load_recipe
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.runs.resolve import resolve
from support.training import make_site

PACKAGE = ("__init__.py", "train.py", "deep/__init__.py", "deep/more.py")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path / "site")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe in a folder with the package `its_pkg`; the working folder is an empty one."""
    folder, here = tmp_path / "project", tmp_path / "here"
    for name in PACKAGE:
        file = folder / "its_pkg" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    here.mkdir()
    monkeypatch.chdir(here)
    (folder / "r.yaml").write_text("name: r\n")
    return folder / "r.yaml"


def kept(recipe: Path, site: Site, *overrides: str) -> Recipe:
    """The recipe as a run from a terminal keeps it."""
    loaded = load_recipe(str(recipe), overrides)
    return resolve(loaded, site, "train", is_from_terminal=True)[0]


@pytest.mark.parametrize("module", ["its_pkg.train", "its_pkg.deep.more"])
@pytest.mark.parametrize("is_beside", [True, False])
def test_a_module_beside_the_recipe_or_in_the_working_folder_is_found(
    recipe, site, monkeypatch, module, is_beside
):
    project = recipe.parent
    if not is_beside:
        monkeypatch.chdir(project)
        recipe = recipe.rename(project.parent / "r.yaml")
    assert kept(recipe, site, f"train.module={module}").code == (str(project),)


def test_a_module_in_the_working_folder_comes_before_an_installed_one(recipe, site, monkeypatch):
    """As `python -m json.tool` runs `json/tool.py` of the working folder."""
    (recipe.parent / "json").mkdir()
    (recipe.parent / "json" / "tool.py").touch()
    (recipe.parent / "json" / "__init__.py").touch()
    monkeypatch.chdir(recipe.parent)
    assert kept(recipe, site, "train.module=json.tool").code == (str(recipe.parent),)


@pytest.mark.parametrize(
    ("module", "lacking"),
    [
        ("its_pgk.train", "its_pgk"),
        ("its_pkg.trian", "its_pkg.trian"),
        ("its_pkg.train.main", "its_pkg.train.main"),
        ("its_pkg.deep.mroe", "its_pkg.deep.mroe"),
        ("its_pkg.deep", "its_pkg.deep.__main__"),
        ("json", "json.__main__"),
        ("json.tol", "json.tol"),
        ("__main__", "__main__"),
    ],
)
def test_a_module_that_python_would_not_run_is_refused_before_a_lease(
    recipe, site, module, lacking
):
    ran = subprocess.run(
        [sys.executable, "-m", module], cwd=recipe.parent, check=False, capture_output=True
    )
    assert ran.returncode != 0
    with pytest.raises(
        RecipeError, match=rf"train\.module needs '{lacking}', which does not exist"
    ):
        kept(recipe, site, f"train.module={module}")


def test_a_package_with_a_main_module_is_found(recipe, site):
    (recipe.parent / "its_pkg" / "__main__.py").touch()
    assert kept(recipe, site, "train.module=its_pkg").train.module == "its_pkg"


class _Finder:
    """As an editable install of setuptools adds one: its packages are on no path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name, path=None, target=None):
        from importlib.machinery import PathFinder

        del target
        return PathFinder.find_spec(name, [str(self._folder)]) if path is None else None


def test_a_module_of_an_editable_install_is_found(recipe, site, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, _Finder(recipe.parent)])
    recipe = recipe.rename(recipe.parents[1] / "r.yaml")
    assert kept(recipe, site, "train.module=its_pkg.train").code == ()
    with pytest.raises(RecipeError, match=r"needs 'its_pkg\.trian'"):
        kept(recipe, site, "train.module=its_pkg.trian")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.command=[bsh, run.sh]", "train.command needs 'bsh', which does not exist"),
        ("train.script=trian.py", r"train.script needs '/.*/trian.py', which does not exist"),
        ("train.module=its_pkg/train.py", "train.module: give the dotted name .* as lab.train"),
    ],
)
def test_a_wrong_program_is_named(recipe, site, override, words):
    with pytest.raises(RecipeError, match=words):
        kept(recipe, site, override)
