"""A home of its own for every test of the control side."""

from __future__ import annotations

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
