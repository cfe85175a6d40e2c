"""Rules of a test session: skips that must not be, failures told at once, only the engine.

The hooks are imported by `tests/conftest.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from importlib.abc import MetaPathFinder
from importlib.metadata import EntryPoints, entry_points
from typing import Any

import pytest

from headrace import entry_points as lookup


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


_LINES = 40
"""The last ones of what a test failed with; all of it stands at the end of the run."""


class FailuresAtOnce:
    """The last lines of each failure, among the dots."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print it where the terminal is: with several processes not in those that test."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if not report.failed or terminal is None or hasattr(self._config, "workerinput"):
            return
        terminal.write_line("")
        terminal.write_line(f"FAILED {report.nodeid} ({report.when})")
        for line in report.longreprtext.splitlines()[-_LINES:]:
            terminal.write_line(f"    {line}")


SATELLITES = (
    "headrace_ec2",
    "headrace_foresight",
    "headrace_pages",
    "headrace_probes",
    "headrace_queues",
)


class _Hidden(MetaPathFinder):
    """They are not there."""

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: Any = None) -> None:
        if name.partition(".")[0] in SATELLITES:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def _of_others(**chosen: str) -> EntryPoints:
    kept = (each for each in entry_points(**chosen) if each.module.split(".")[0] not in SATELLITES)
    return EntryPoints(kept)


def hide_satellites() -> None:
    """Neither imports nor entry points find them any more in this process."""
    sys.meta_path.insert(0, _Hidden())
    lookup.entry_points = _of_others  # type: ignore[attr-defined]
