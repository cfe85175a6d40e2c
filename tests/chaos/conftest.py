"""What the chaos tests share: the random moment, and the run that nobody disturbs."""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path

import pytest

from support.airflow_service import SITE, make_home
from support.disturbed import LONG_S, OVERRIDES, Records, Result, headrace, newest_run

_SEED = "HEADRACE_CHAOS_SEED"


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
def undisturbed(direct: Records) -> Result:
    """Result of a run without Airflow that nobody disturbs."""
    log = direct.home / "undisturbed.log"
    process = headrace(direct.home, ["run", "digits", "--site", SITE, *OVERRIDES], log)
    assert process.wait(LONG_S) == 0, log.read_text()
    return direct.result(newest_run(direct, log, process))
