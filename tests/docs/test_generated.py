"""The generated pages say what the code says."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from generators.python_api import PUBLIC, Named, public, rendered

from headrace.recipe.recipe import Recipe
from support.sources import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REFERENCE = ROOT / "docs" / "reference"


def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the generator."""
    return subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_pages_are_up_to_date():
    done = generate("--check")
    hint = "Run `.venv/bin/python docs/generate.py` and commit what it writes."
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{hint}"


def test_an_edited_or_missing_page_is_found_and_written_anew(tmp_path: Path):
    copy = tmp_path / "reference"
    shutil.copytree(REFERENCE, copy)
    (copy / "cli.md").write_text("edited by hand\n")
    (copy / "dags.md").unlink()
    found = generate("--check", "--folder", str(copy))
    assert found.returncode == 1
    assert found.stdout == f"out of date: {copy}/cli.md\nout of date: {copy}/dags.md\n"
    assert generate("--folder", str(copy)).returncode == 0
    assert generate("--check", "--folder", str(copy)).stdout == ""


def test_every_key_of_the_recipe_is_told_with_its_meaning():
    rows = re.findall(
        r"^- \*\*`(\w+)`\*\* \(.+\): (.*)$", (REFERENCE / "recipe.md").read_text(), re.M
    )
    keys = {key for key, _ in rows}
    schema = Recipe.model_json_schema(by_alias=True)
    parts = [schema, *(schema["$defs"][name] for name in schema["$defs"] if name != "Target")]
    assert keys == {key for part in parts for key in part.get("properties", ())}
    assert [key for key, meaning in rows if not meaning] == []


def test_no_page_shows_this_machine():
    pages = {page.name: page.read_text() for page in REFERENCE.rglob("*") if page.is_file()}
    assert "recipe.md" in pages
    assert [name for name, text in pages.items() if f"{Path.home()}/" in text] == []


@pytest.mark.parametrize("kind", ["recipe", "site"])
def test_schemas_are_what_the_command_writes(kind: str):
    command = [str(Path(sys.executable).parent / "headrace"), "schema", kind]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == json.loads(
        (REFERENCE / "schemas" / f"{kind}.schema.json").read_text()
    )


def test_groups_are_told_with_their_options():
    rows = (REFERENCE / "cli.md").read_text().splitlines()
    start = rows.index("`headrace runs [--json] [OPTIONS] [COMMAND]`")
    told = rows[start : rows.index("## headrace runs show")]
    assert "- `--state`: Only in this state." in told


def test_the_architecture_page_shows_the_layers_and_packages_that_are_checked():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contract["contracts"][0]["layers"]
    page = (ROOT / "docs" / "explanations" / "architecture.md").read_text()
    block = page.partition("<!-- layers -->")[2].partition("<!-- /layers -->")[0]
    shown = block.partition("```text\n")[2].partition("\n```")[0].splitlines()
    names = [line.removeprefix("| ").split()[0] for line in shown]
    assert names == [name for line in layers for name in line.split(" | ")]
    assert [line for line in shown if len(line.removeprefix("| ").split()) < 3] == []
    packages = re.findall(r"^\| `(\w+)` \| \S.* \|$", block, re.M)
    assert ["headrace", *packages] == contract["root_packages"]


def test_layers_that_differ_from_the_code_are_found_and_written_anew(tmp_path: Path):
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from generators.layers import with_layers
    finally:
        sys.path.remove(str(ROOT / "docs"))
    text = (ROOT / "docs" / "explanations" / "architecture.md").read_text()
    assert with_layers(text, ROOT) == text
    assert with_layers(re.sub(r"\nsuites .*", "", text), ROOT) == text
    for folder in ("pipelines", "plugins"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    project = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(project.replace('  "suites",\n', ""))
    moved = with_layers(text, tmp_path)
    assert "\nsuites " in text
    assert "\nsuites " not in moved


ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
_TARGET = re.compile(r"_target_: (headrace\w*(?:\.\w+)*)\.(\w+)")
_HEAD = re.compile(r"^(?:from|import) headrace.*$", re.M)
_EXTEND = ROOT / "docs" / "how-to" / "extend.md"
"""Its packages stand beside the engine, and import of it what they need."""
_PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
_RECIPES = [*(ROOT / "examples").glob("*.yaml"), *(ROOT / "pipelines").rglob("builtin/**/*.yaml")]


def imported() -> Iterator[tuple[str, str]]:
    """Modules and names that readers are told to import or to name."""
    pages = (page for page in _PAGES if page != _EXTEND)
    codes = [code for page in pages for code in _FENCE.findall(page.read_text())]
    codes += [path.read_text() for path in (ROOT / "examples").glob("*.py")]
    for line in (line for code in codes for line in _HEAD.findall(code)):
        (node,) = ast.parse(line).body
        if isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), each.name) for each in node.names)
        else:
            yield line, ""
    for path in (*_PAGES, *_RECIPES):
        yield from _TARGET.findall(path.read_text())


def test_what_readers_are_told_to_import_is_public():
    known = {(module, name) for module, names in PUBLIC.items() for name in names}
    known |= {("headrace", module.partition(".")[2]) for module in PUBLIC}
    known.add(("import headrace", ""))  # its functions are those of `headrace.api`
    found = set(imported())
    assert {("headrace", "script"), ("headrace.data.transforms", "ScaleToUnit")} <= found
    assert found - known == set()


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_tell_what_they_take(module: str):
    for each in public(module):
        for one in (each, *each.members):
            assert one.about, one.name
            lost = [name for name in one.parameters if not _is_told(name, one)]
            assert lost == [], f"{one.name} says nothing of {lost}"


def _is_told(name: str, of: Named) -> bool:
    """By its name; or it is all that the first line can be about, or not used."""
    is_plain = isinstance(of.node, ast.FunctionDef) and len(of.parameters) == 1
    is_used = f"del {name}" not in ast.unparse(of.node)
    return is_plain or not is_used or re.search(rf"\b{name}\b", of.about) is not None


def test_errors_that_public_names_raise_are_public():
    every = [one for module in PUBLIC for each in public(module) for one in (each, *each.members)]
    told = {name for one in every for name in re.findall(r"^ +(\w+Error): ", one.about, re.M)}
    assert "UserError" in told
    assert told - set(PUBLIC["headrace.errors"]) == set()


def test_sections_of_docstrings_become_lists():
    about = "Does it.\n\nArgs:\n    one: The first,\n        at length.\n    two: The second.\n"
    shown = "Does it.\n\n**Args**\n\n- `one`: The first, at length.\n- `two`: The second."
    assert rendered(about) == shown
