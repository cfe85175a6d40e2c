"""What the chaos tests share: the random moment, and the run that nobody disturbs."""

from __future__ import annotations

import json
import os
import random
import secrets
from dataclasses import asdict
from pathlib import Path

import pytest
from filelock import FileLock

from support.airflow_service import SITE, make_home
from support.disturbed import LONG_S, OVERRIDES, Records, Result, headrace, newest_run

_SEED = "HEADRACE_CHAOS_SEED"
_WORKER = "PYTEST_XDIST_WORKER"
"""Set in each of several test processes; their folders lie in one."""


@pytest.fixture
def rng() -> random.Random:
    """Chooses the moment and the victim; its seed is printed with a failure."""
    seed = os.environ.get(_SEED) or str(secrets.randbelow(10**6))
    print(f"repeat with {_SEED}={seed}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """A home for runs without Airflow."""
    home: Path = make_home(tmp_path_factory.mktemp("direct"))
    return Records(home)


@pytest.fixture(scope="session")
def undisturbed(direct: Records, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Result of a run without Airflow that nobody disturbs; one run for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    shared = (folder.parent if _WORKER in os.environ else folder) / "undisturbed.json"
    with FileLock(shared.with_suffix(".lock")):
        if not shared.exists():
            shared.write_text(json.dumps(asdict(_run_undisturbed(direct))))
        return Result(**json.loads(shared.read_text()))


def _run_undisturbed(direct: Records) -> Result:
    log = direct.home / "undisturbed.log"
    process = headrace(direct.home, ["run", "digits", "--site", SITE, *OVERRIDES], log)
    assert process.wait(LONG_S) == 0, log.read_text()
    return direct.result(newest_run(direct, log, process))
