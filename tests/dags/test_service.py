"""The parts of `headrace up` that are functions of their arguments, and what is kept small."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import socket
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from airflow.configuration import conf

from headrace.cli.airflow_server import make_login
from headrace.errors import UserError
from headrace_airflow import housekeeping
from headrace_airflow.bundle import HeadraceDagBundle
from headrace_airflow.housekeeping import Housekeeping, remove_logs, shorten
from headrace_airflow.plugin import OneWriter
from headrace_airflow.service import (
    airflow_settings,
    is_free,
    listens,
    loopback_without_proxy,
    reserve_port,
    wait_before_restart_s,
)
from headrace_airflow.supervisor import unhealthy_components
from support.waiting import wait_until


def test_the_settings_are_airflows_own(tmp_path):
    """Each option exists in this Airflow: a misspelt one would be ignored in silence."""
    settings = airflow_settings(tmp_path, 8081, tmp_path / "secret")
    assert settings.pop("AIRFLOW_HOME") == str(tmp_path)
    for name in settings:
        _, section, option = name.split("__")
        if section == "USAGE_DATA_COLLECTION":
            continue  # gone in Airflow 3.3
        is_command = option.endswith("_CMD")
        key = (section.lower(), option.lower().removesuffix("_cmd"))
        known = conf.configuration_description[key[0]]["options"]
        assert key[1] in known, name
        assert not is_command or key in conf.sensitive_config_values, name


def test_everybody_has_to_log_in(tmp_path):
    settings = airflow_settings(tmp_path, 8081, tmp_path / "secret")
    assert settings["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] == "False"
    assert settings["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "admin:admin"
    file = settings["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]
    assert file == str(make_login(tmp_path).file)


def test_the_command_for_the_secret_is_a_word_for_each_part(tmp_path):
    folder = tmp_path / "with a space"
    settings = airflow_settings(folder, 8081, folder / "secret")
    command = shlex.split(settings["AIRFLOW__API_AUTH__JWT_SECRET_CMD"])
    assert command == ["cat", str(folder / "secret")]


def test_the_settings_keep_everything_on_this_machine(tmp_path):
    settings = airflow_settings(tmp_path, 8081, tmp_path / "secret")
    assert settings["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert settings["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:8081"
    assert settings["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:8081/execution/"
    assert settings["AIRFLOW__USAGE_DATA_COLLECTION__ENABLED"] == "False"


def test_the_bundle_named_in_the_settings_holds_the_dags(tmp_path):
    settings = airflow_settings(tmp_path, 8081, tmp_path / "secret")
    (bundle,) = json.loads(settings["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"])
    assert bundle["classpath"] == f"{HeadraceDagBundle.__module__}.{HeadraceDagBundle.__name__}"
    folder = HeadraceDagBundle(name=bundle["name"], **bundle["kwargs"]).path
    names = {path.stem for path in folder.glob("*.py")}
    assert names == {f"headrace_{name}" for name in ("pack", "probe", "reaper", "suite", "train")}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "example.org"}, "example.org,127.0.0.1,localhost"),
        ({"no_proxy": "localhost,a.b"}, "localhost,a.b,127.0.0.1"),
    ],
)
def test_no_proxy_stands_before_the_loopback_interface(before, after):
    assert loopback_without_proxy(before) == {"NO_PROXY": after, "no_proxy": after}


def test_two_who_start_at_once_get_different_ports():
    """The first has not begun to listen when the second chooses."""
    first, second = reserve_port(None), reserve_port(None)
    assert first.port != second.port
    with pytest.raises(UserError, match=f"Port {first.port} of 127.0.0.1 is taken"):
        reserve_port(first.port)
    first.holder.close()
    again = reserve_port(first.port)
    assert again.port == first.port
    again.holder.close()
    second.holder.close()


def test_a_port_in_use_is_not_chosen():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
        assert listens(os.getpid(), port)
        with pytest.raises(UserError, match="is taken"):
            reserve_port(port)
    assert not listens(os.getpid(), port)


def test_restarts_slow_down_to_half_a_minute():
    waits = [wait_before_restart_s(times) for times in (1, 2, 3, 4, 9, 99)]
    assert waits == [0.0, 1.0, 2.0, 4.0, 30.0, 30.0]


def test_health_names_what_is_missing():
    healthy = {"status": "healthy"}
    answer = {
        "metadatabase": healthy,
        "scheduler": {"status": "unhealthy"},
        "triggerer": healthy,
        "dag_processor": {"status": None},
    }
    assert unhealthy_components(answer) == ["scheduler", "dag_processor"]


def _most_at_once(method, path="/api/v2/dags"):
    """Requests that a server behind `OneWriter` sees at once, of five that come together."""
    inside, most = 0, 0

    async def server(scope, receive, send):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(3):
            await asyncio.sleep(0)
        inside -= 1

    async def five_requests():
        guarded = OneWriter(server)
        scope = {"type": "http", "method": method, "path": path}
        await asyncio.gather(*(guarded(scope, None, None) for _ in range(5)))

    asyncio.run(five_requests())
    return most


@pytest.mark.parametrize(("method", "most"), [("POST", 1), ("PATCH", 1), ("GET", 5)])
def test_requests_that_write_to_sqlite_come_one_by_one(method, most):
    """Else two of them wait for each other, and one fails: "database is locked" (pains 12)."""
    assert _most_at_once(method) == most


def test_what_is_asked_of_runs_and_leases_keeps_no_request_of_airflow_waiting():
    """It writes nothing of Airflow's, and closing a lease may take a while."""
    assert _most_at_once("POST", "/base/headrace/act/lease") == 5


def test_on_other_databases_requests_come_as_they_like(monkeypatch):
    monkeypatch.setattr(conf, "get", lambda *_: "postgresql+psycopg2://airflow")
    assert _most_at_once("POST") == 5


def test_logs_of_the_reaper_are_removed_when_they_are_old(tmp_path: Path) -> None:
    for name, at in (("run_id=old", 1000.0), ("run_id=new", 3000.0)):
        log = tmp_path / name / "task_id=reap" / "attempt=1.log"
        log.parent.mkdir(parents=True)
        log.write_text("nothing\n")
        os.utime(tmp_path / name, (at, at))
    remove_logs(tmp_path, datetime.fromtimestamp(2000.0, timezone.utc))
    assert [each.name for each in tmp_path.iterdir()] == ["run_id=new"]


def test_a_long_log_begins_anew_under_who_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "MOST_LOG_BYTES", 10)
    log = tmp_path / "scheduler.log"
    with log.open("ab", buffering=0) as written:
        written.write(b"0123456789")
        shorten(log)
        written.write(b"x")
        assert log.read_bytes() == b"0123456789x"
        shorten(log)
        written.write(b"new")
    assert log.read_bytes() == b"new"
    assert (tmp_path / "scheduler.log.1").read_bytes() == b"0123456789x"


def test_a_full_disk_puts_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "scheduler.log").write_text("long")
    monkeypatch.setattr(housekeeping, "_FIRST_S", 0.0)
    monkeypatch.setattr(housekeeping, "MOST_LOG_BYTES", 1)
    monkeypatch.setattr(housekeeping.shutil, "copyfile", _full)
    Housekeeping(tmp_path, {}, tmp_path).look()
    assert "old runs of the reaper are removed later" in caplog.text
    assert (tmp_path / "scheduler.log").read_text() == "long"


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_it_is_done_again_and_again_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = "import sys; print('words'); sys.exit(3)"
    monkeypatch.setattr(housekeeping, "_FIRST_S", 0.0)
    monkeypatch.setattr(housekeeping, "_EVERY_S", 0.0)
    monkeypatch.setattr(housekeeping, "clean_command", lambda _: [sys.executable, "-c", program])
    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *given, **more: begun.append(popen(*given, **more)) or begun[-1]
    )
    kept = Housekeeping(tmp_path, {}, tmp_path)

    def looked() -> bool:
        kept.look()
        return len(begun) == 2

    wait_until(looked, 30, "a second time")
    assert "old rows of the reaper were not removed" in caplog.text
    begun[-1].wait(30)
    assert (tmp_path / "housekeeping.log").read_text() == "words\n"
