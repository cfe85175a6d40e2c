"""Pages that claim something say by what: tests, sources, versions; and nobody is left unread."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml

from headrace.clusters.fleet import MAX_LOSSES
from headrace.clusters.pool_policy import MAX_FAILURES
from headrace.recipe.recipe import RetryPolicy
from headrace.recipe.suite import SuiteSpec
from headrace.recipe.train import TrainSpec
from headrace_airflow.dag_parts import task_defaults

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXPLANATIONS = DOCS / "explanations"
CHANGES = "If you want to change X, open Y"


def rows(page: Path, heading: str) -> list[str]:
    """Rows of the table below a heading, without its head."""
    section = page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def test_what_a_set_up_takes_is_told_alike():
    told = re.compile(r"\d to \d minutes on \d cores, and [\d.]+ GB")
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "scripts/setup.sh")]
    assert len({found for page in pages for found in told.findall(page.read_text())}) == 1
    assert all(told.search(page.read_text()) for page in pages)


def test_what_is_the_same_to_the_bit_is_held_by_tests():
    """`test_links.py` sees to it that tests of these names exist."""
    claims = rows(EXPLANATIONS / "determinism.md", "The same to the bit")
    assert len(claims) >= 10
    assert [row for row in claims if not re.search(r"`test_\w+`[^|]*\|$", row)] == []


def test_whoever_wants_to_change_something_is_told_what_to_open_and_what_guards_it():
    """`test_links.py` sees to it that the files to open exist, and tests of these names."""
    told = [row.split(" | ") for row in rows(EXPLANATIONS / "architecture.md", CHANGES)]
    assert len(told) > 40
    assert [row for row in told if len(row) != 3 or "](../" not in row[1]] == []
    guards = [(row[0], re.findall(r"`(tests/[\w/.]+|test_\w+\.py)`", row[2])) for row in told]
    assert [what for what, names in guards if not names] == []
    paths = {name for _, names in guards for name in names if "/" in name}
    assert sorted(name for name in paths if not (ROOT / name).exists()) == []


@pytest.mark.parametrize(
    ("heading", "least"),
    [("In one table", 8), ("Readers of data: Streaming, WebDataset, LitData", 4)],
)
def test_tools_are_compared_with_version_and_source(heading: str, least: int):
    told = rows(EXPLANATIONS / "comparison.md", heading)
    others = [row for row in told if not row.startswith("| headrace |")]
    assert len(told) >= least
    assert [row for row in others if "](https://" not in row] == []
    assert [row for row in others if not re.search(r"^\|[^|]+\|[^|]*\d\.\d", row)] == []


def test_the_citation_is_valid_and_of_this_release():
    checker = str(Path(sys.executable).parent / "check-jsonschema")
    command = [checker, "--builtin-schema", "vendor.citation-file-format", "CITATION.cff"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    known = metadata("headrace")
    assert (told["version"], told["license"]) == (known["Version"], known["License-Expression"])


def test_every_page_can_be_reached_from_the_first():
    """To a new page leads a link, best from `docs/index.md`."""
    reached: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([^()\s#]+\.md)[)#]", page.read_text())
            found = ((page.parent / link).resolve() for link in links if "://" not in link)
            waiting += [each for each in found if DOCS in each.parents]
    left = set(DOCS.rglob("*.md")) - reached - {EXPLANATIONS / "decisions" / "template.md"}
    assert sorted(left) == [], "add a link to these in docs/index.md"


def test_how_often_work_is_tried_is_told_by_the_defaults():
    restarts, attempts = TrainSpec().max_restarts, RetryPolicy().max_failures
    retries, tasks = SuiteSpec().retries, task_defaults()["retries"]
    page = (EXPLANATIONS / "reliability.md").read_text().split("### How often")[1]
    told = [int(number) for number in re.findall(r"^\|.*\| (\d+) \|", page, re.MULTILINE)]
    launches = attempts * (1 + restarts), (1 + retries) * (1 + restarts)
    assert told[:6] == [restarts, attempts, retries, MAX_FAILURES, MAX_LOSSES, tasks]
    assert told[6:] == [*launches, launches[0] * (1 + tasks)]
    assert f"fewer than {attempts**2} leases by default" in page
