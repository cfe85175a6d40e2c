"""Runs, datasets and the ledger of an earlier state of headrace open today."""

from __future__ import annotations

import sqlite3
import tarfile
from pathlib import Path

import pytest

from support.command_line import headrace

HOMES = sorted((Path(__file__).parent / "older_homes").glob("*.tar.gz"))
MADE_IN = "/srv/headrace"


@pytest.fixture(params=HOMES, ids=lambda file: file.name)
def home(request: pytest.FixtureRequest, headrace_home: Path) -> Path:
    """A home with one run of 150 digits, its leases, its dataset and its ledger."""
    with tarfile.open(request.param) as archive:
        # Python 3.11.2 of Debian 12 has no filters
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(headrace_home, **safely)
    for file in headrace_home.rglob("*"):
        if file.suffix in (".json", ".sql") and file.name != "manifest.json":  # it has a digest
            file.write_text(file.read_text().replace(MADE_IN, str(headrace_home)))
    with sqlite3.connect(headrace_home / "ledger.db") as ledger:
        ledger.executescript((headrace_home / "ledger.sql").read_text())
    return headrace_home


def told(*arguments: str) -> str:
    done = headrace(*arguments, columns=200)
    assert done.exit_code == 0, done.output
    return done.output


def test_an_older_home_opens(home: Path):
    (run,) = (path.name for path in (home / "runs").glob("digits-*"))
    (dataset,) = (home / "datasets").iterdir()
    assert run in told("runs")
    shown = told("status", run)
    assert shown.count("succeeded") == 5
    assert "accuracy 0.1333" in shown
    assert "fit" in told("logs", run, "train").lower()
    assert "150" in told("inspect", str(dataset))
    assert "intact: 3 shards, 150 samples" in told("verify", str(dataset))
    assert told("lease", "list", "--all").count(run) == 2
    assert told("resume", run)
