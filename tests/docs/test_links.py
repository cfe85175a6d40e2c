"""Links inside the documentation lead somewhere: to a file, and to a heading in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from headrace.cli.commands import build
from support.sources import ROOT, product_modules, project_files, relative

_LINK = re.compile(r"\]\(([^()\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)


def pages() -> list[str]:
    """Markdown files of the repository."""
    return [str(relative(path)) for path in project_files() if path.suffix == ".md"]


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", page.read_text()), re.M)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        if link.startswith(("https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("name", pages())
def test_links_of_a_page_lead_somewhere(name):
    assert broken(ROOT / name) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A *fine* page\n[a](#a-fine-page) [b](#no) [c](none.md) [d](page.md#no)\n")
    assert broken(page) == ["#no", "none.md", "page.md#no"]


_TEST = re.compile(r"`((?:tests/[\w/]+\.py)|(?:test_\w+(?:\.py)?))`")


def test_tests_that_pages_name_exist() -> None:
    files = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    names = {path.name for path in files}
    functions = set(re.findall(r"def (test_\w+)", "\n".join(files.values())))
    named = [(page, name) for page in pages() for name in _TEST.findall((ROOT / page).read_text())]
    assert len(named) > 20
    lost = [
        (page, name)
        for page, name in named
        if not (ROOT / name).is_file() and name not in names and name not in functions
    ]
    assert lost == []


_NAMED = re.compile(r"`headrace ([a-z][a-z0-9-]*)(?: ([a-z][a-z0-9-]*))?")


def test_commands_that_messages_and_docs_name_exist():
    commands = get_command(build()).commands  # type: ignore[attr-defined]
    wrong = [
        f"{relative(path)}: {match[0]}`"
        for path in (*product_modules(), *_pages())
        for match in _NAMED.finditer(path.read_text())
        if not _exists(commands, match[1], match[2])
    ]
    assert wrong == []


def _pages() -> Iterator[Path]:
    """Pages that tell what is true now; decisions tell what was, and one page adds commands."""
    for path in project_files():
        is_now = "decisions" not in path.parts and path.name != "extend.md"
        if path.suffix == ".md" and is_now:
            yield path


def _exists(commands: dict[str, Any], name: str, word: str | None) -> bool:
    command = commands.get(name)
    if command is None or word is None:
        return command is not None
    inner = getattr(command, "commands", None)
    if inner is not None:
        return word in inner
    return any(each.param_type_name == "argument" for each in command.params)
