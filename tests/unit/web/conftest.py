"""A home and a ledger of its own for every test of what pages show."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_ledger(headrace_home, monkeypatch):
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
