"""A home of its own for every test of the control side."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

ROOMS = {"cleanup", "execution", "leases", "runs", "status"}
"""Rooms that write to the ledger; the others state where they do."""


@pytest.fixture(autouse=True)
def _own_ledger(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.parent.name == "cleanup":
        request.getfixturevalue("own_account")
    if request.path.parent.name in ROOMS:
        request.getfixturevalue("headrace_home")
        monkeypatch.delenv("HEADRACE_LEDGER", raising=False)


@pytest.fixture
def own_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache and no staged copy of this account: what cleans must not find them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOGNAME", f"test-{uuid.uuid4().hex}")  # in the names of tiers in memory
