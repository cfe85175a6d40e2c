"""Turns skipped tests into failures where every test must run (`CI=true`).

Used as a pytest plugin: the hooks are imported by `tests/conftest.py`.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest


def must_run_all() -> bool:
    """Whether a skipped test counts as failed: `CI` is set to something true."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that skipped itself."""
    report = yield
    if must_run_all() and report.skipped and not hasattr(report, "wasxfail"):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module that skipped itself while it was collected."""
    report = yield
    if must_run_all() and report.skipped:
        _fail(report)
    return report


def _fail(report: Any) -> None:
    where = report.longrepr
    reason = where[2] if isinstance(where, tuple) else str(where)
    report.outcome = "failed"
    report.longrepr = (
        f"CI=true lets no test be skipped. {reason}\n"
        "'Tests' in CONTRIBUTING.md says what a machine with CI=true needs."
    )
