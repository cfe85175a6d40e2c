"""Pages that are to be followed are followed, by a reader who takes them word by word."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.documents import NEEDS_SLURM, Reader, blocks

ROOT = Path(__file__).parents[2]

PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if blocks(page) and NEEDS_SLURM not in page.read_text()
)


def test_the_pages_that_a_newcomer_follows_are_among_those_tested():
    tutorials = {f"docs/tutorials/{name}.md" for name in ("your-own-data", "first-suite")}
    assert {"README.md", *tutorials} <= set(PAGES)


@pytest.fixture
def home(tmp_path_factory) -> Path:
    """An empty one, at the same place for all pages: their leases share what is imported."""
    home = tmp_path_factory.getbasetemp() / "reader"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    return home


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_page_can_be_followed(name, home, no_leftover_processes):
    reader = Reader(home=home)
    for block in blocks(ROOT / name):
        reader.follow(block)
