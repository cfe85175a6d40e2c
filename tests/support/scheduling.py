"""Which tests one of several test processes (pytest-xdist) must run, as they share something."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

AIRFLOW = "airflow"
"""Folders of this name hold the tests that share the Airflow of the session."""


def shares_airflow(nodeid: str) -> bool:
    """Whether a test is one of those that share the Airflow of the session."""
    return AIRFLOW in nodeid.split("::", 1)[0].split("/")[:-1]


class SharedAirflowScheduling(LoadFileScheduling):
    """A file stays in one process, for its module fixtures; so do all tests in `AIRFLOW` folders.

    Groups begin in the order of the tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = nodeid.split("::", 1)[0]
        return AIRFLOW if shares_airflow(nodeid) else file


def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False
    return SharedAirflowScheduling(config, log)
