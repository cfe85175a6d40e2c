"""A home and a ledger of its own for every test of what pages show; datasets are packed here."""

from __future__ import annotations

import pytest

from support.packing import in_process, make_context, packs

__all__ = ["in_process", "make_context", "packs"]


@pytest.fixture(autouse=True)
def _own_ledger(headrace_home, monkeypatch):
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
