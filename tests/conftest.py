"""Fixtures and rules that all tests share."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import tempfile
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from headrace.processes.identity import end_processes
from headrace.processes.zygote import zygotes
from headrace.recipe import load
from support.airflow_service import airflow_service, pytest_runtest_teardown
from support.ec2_sim import ec2_sim
from support.grid_engine import dev_grid_engine, grid_engine
from support.leftovers import MARK, describe, started_by
from support.login_node import login_node
from support.net_hosts import net_hosts
from support.ports import find_free_port
from support.rank_processes import DRIVERS, FUNCTIONS, SERVER, idle_servers, share_servers
from support.s3_servers import (
    moto_bucket,
    moto_server,
    rclone_bucket,
    rclone_server,
    s3_credentials,
    swift_bucket,
    swift_server,
)
from support.scheduling import place, pytest_xdist_make_scheduler
from support.session_rules import (
    FailuresAtOnce,
    hide_satellites,
    pytest_make_collect_report,
    pytest_runtest_makereport,
)
from support.slurm_dev import dev_slurm, second_slurm, slurm
from support.waiting import wait_until

__all__ = [
    "airflow_service",
    "dev_grid_engine",
    "dev_slurm",
    "ec2_sim",
    "grid_engine",
    "login_node",
    "moto_bucket",
    "moto_server",
    "net_hosts",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
    "pytest_runtest_teardown",
    "pytest_xdist_make_scheduler",
    "rclone_bucket",
    "rclone_server",
    "s3_credentials",
    "second_slurm",
    "slurm",
    "swift_bucket",
    "swift_server",
]

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Threads of PyTorch that wait sleep: several tests at once have more of them than cores."""

os.environ |= {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE"}
"""As scikit-learn sets them when it is imported: leases started before and after share a zygote."""

_FORK_SERVER_IMPORTS = [
    "pytest", "headrace.ledger.ledger", "headrace.ledger.migrations", "support.ledger_rows",
    "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql.psycopg", "psycopg",
]  # fmt: skip
"""What the twenty processes of a ledger test need."""

_MARK = uuid.uuid4().hex
"""Of the tests of this process that may leave nothing: what one has left is not the next one's."""

_GRACE_S = 60.0
"""No process of headrace may live longer than this after its work has ended."""

settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the pictures of the docs go, and whether the engine is alone."""
    parser.addoption("--pictures", metavar="FOLDER", help="make the docs' pictures in this folder")
    parser.addoption(
        "--without-satellites", action="store_true", help="only the engine can be imported"
    )


def pytest_configure(config: pytest.Config) -> None:
    """The first test that starts a fork server starts it for all, so this is said before."""
    if config.getoption("--without-satellites"):
        hide_satellites()
    config.pluginmanager.register(FailuresAtOnce(config))
    multiprocessing.set_forkserver_preload(_FORK_SERVER_IMPORTS)
    share_servers()
    if not hasattr(config, "workerinput"):  # its leases keep imported what no other session ends
        os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="headrace-")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported stays: the garbage collector would go through all of it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What leases have kept imported for the next ones is not needed any more."""
    if not hasattr(session.config, "workerinput"):
        end_processes(zygotes())
        shutil.rmtree(os.environ["XDG_RUNTIME_DIR"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files in a fixed order, whatever was named on the command line."""
    items.sort(key=lambda item: place(item.nodeid.split("::", 1)[0]))


@pytest.fixture(autouse=True)
def _no_part_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that inform, and failed in another test, are asked anew."""
    monkeypatch.setattr("headrace.informing._failed", {})


@pytest.fixture
def headrace_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A headrace home, without digits in their folder; no other setting leaks in."""
    for name in ("HEADRACE_RECIPES_PATH", "HEADRACE_SITES_PATH", "HEADRACE_DIGITS"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    (home / "examples" / "digits").mkdir(parents=True)
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    load._read_as_of.cache_clear()  # folders of sites are in the home
    return home


@pytest.fixture
def own_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache and no staged copy of this account: what cleans must not find them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOGNAME", f"test-{uuid.uuid4().hex}")  # in the names of tiers in memory


@pytest.fixture
def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    return find_free_port()


@pytest.fixture
def no_leftover_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test when a process it started, directly or not, outlives it; then end those."""
    monkeypatch.setenv(MARK, _MARK)
    yield
    for server in idle_servers(DRIVERS, FUNCTIONS):
        server.kill()

    def left_over() -> list[psutil.Process]:
        shared = idle_servers(SERVER)
        return [each for each in started_by(_MARK, tmp_path) if each not in shared]

    try:
        wait_until(lambda: not left_over(), _GRACE_S, "the test's processes to end")
    except AssertionError:
        left = left_over()
        listed = describe(left)
        end_processes(left)
        pytest.fail(f"{len(left)} processes outlived the test by {_GRACE_S:g} s:\n{listed}")


@pytest.fixture(scope="session")
def digits_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 1,797 handwritten digits of scikit-learn as PNG files in ten class folders."""
    from headrace.examples.digits import export_digits

    folder = tmp_path_factory.mktemp("examples") / "digits"
    export_digits(folder)
    return folder
