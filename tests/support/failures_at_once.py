"""Tells of a failed test when it has failed: a run that is ended early still says why.

Used as a pytest plugin, registered by `tests/conftest.py`.
"""

from __future__ import annotations

import pytest

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
