"""`headrace up`: its parts that are functions, and the components of Airflow."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import multiprocessing
import os
import shlex
import socket
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from airflow.configuration import conf
from airflow.models.taskinstancekey import TaskInstanceKey

from headrace.cli.airflow_server import make_login
from headrace.errors import UserError
from headrace.ledger import ledger as ledgers
from headrace.ledger.ledger import open_ledger
from headrace.recipe import load
from headrace.recipe.unix_accounts import account
from headrace.runs.runs import open_run
from headrace_airflow import housekeeping
from headrace_airflow.bundle import HeadraceDagBundle
from headrace_airflow.housekeeping import Housekeeping, remove_logs, shorten
from headrace_airflow.local_executor import LocalExecutor
from headrace_airflow.plugin import OneWriter
from headrace_airflow.service import (
    airflow_settings,
    environment_for,
    is_free,
    listens,
    loopback_without_proxy,
    reserve_port,
    wait_before_restart_s,
)
from headrace_airflow.supervisor import unhealthy_components
from headrace_airflow.warm_caches import warm_caches
from support.runs import make_run
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


_DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"


@pytest.mark.parametrize(
    ("name", "is_used"),
    [
        ("AIRFLOW_CONN_SMTP_DEFAULT", True),
        ("AIRFLOW_VAR_TEAM", True),
        ("AIRFLOW_CONFIG", True),
        ("AIRFLOW__SMTP__SMTP_HOST", True),
        ("AIRFLOW__SECRETS__BACKEND", True),
        ("AIRFLOW__CORE__FERNET_KEY_CMD", True),
        ("AIRFLOW__CORE__PARALLELISM", False),
        ("AIRFLOW_HOME", False),
        ("AIRFLOW__CORE__EXECUTOR", False),
        ("AIRFLOW__CORE__AUTH_MANAGER", False),
        ("AIRFLOW__CORE__DAGS_FOLDER", False),
        (_DATABASE, False),
        (f"{_DATABASE}_CMD", False),
        (f"{_DATABASE}_SECRET", False),
        (f"{_DATABASE}_ASYNC", False),
        ("AIRFLOW__API__SSL_CERT", False),
        ("AIRFLOW__API_AUTH__JWT_SECRET", False),
        ("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", False),
    ],
)
def test_a_variable_of_the_shell_is_used_or_named(tmp_path, name, is_used):
    settings = airflow_settings(tmp_path, 8081, tmp_path / "secret")
    environment, lines = environment_for({name: "a secret", "PATH": "/bin"}, settings)
    assert environment["PATH"] == "/bin"
    assert (environment.get(name) == "a secret") is is_used
    assert [line.partition(" is not used: ")[0] for line in lines] == ([] if is_used else [name])
    assert "a secret" not in "".join(lines)


def test_variables_of_headrace_env_are_not_named(tmp_path):
    before = airflow_settings(tmp_path, 8081, tmp_path / "secret")
    now = airflow_settings(tmp_path, 8082, tmp_path / "secret")
    assert environment_for(before, now) == (now, ())


def test_everybody_has_to_log_in(tmp_path):
    settings = airflow_settings(tmp_path, 8081, tmp_path / "secret")
    assert settings["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] == "False"
    assert settings["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == f"{account()}:admin"
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
    bundle, own = json.loads(settings["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"])
    assert own["kwargs"]["path"] == str(tmp_path.parent / "dags")
    assert bundle["classpath"] == f"{HeadraceDagBundle.__module__}.{HeadraceDagBundle.__name__}"
    folder = HeadraceDagBundle(name=bundle["name"], **bundle["kwargs"]).path
    names = {path.stem for path in folder.glob("*.py")}
    assert len(names) == 6
    assert all(name.startswith("headrace_") for name in names)


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


_AIRFLOW = """
import atexit, gc, os, sys

class Large:
    def __del__(self):
        os.write(1, b"collected,")

kept = Large()
kept.itself = kept

def main():
    kind = "collected" if gc.get_freeze_count() < 10_000 else "kept"
    print("imports", kind, "others", "collected" if gc.isenabled() else "kept", end=",")
    atexit.register(lambda: print("closed", end=","))
    if os.fork() == 0:
        return
    print("child", os.waitstatus_to_exitcode(os.wait()[1]), end=",")
    if sys.argv[1:] == ["raise"]:
        raise ValueError("no such component")
    if sys.argv[1:]:
        sys.exit(int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1])
"""


@pytest.mark.parametrize(
    ("argument", "code", "told"),
    [
        ([], 0, ""),
        (["3"], 3, ""),
        (["why"], 1, "why"),
        (["raise"], 1, "no such component"),
    ],
)
def test_a_component_ends_with_its_code_and_without_a_last_collection(
    tmp_path: Path, argument: list[str], code: int, told: str
) -> None:
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").touch()
    (tmp_path / "airflow" / "__main__.py").write_text(_AIRFLOW)
    done = subprocess.run(
        [sys.executable, "-m", "headrace_airflow.component", *argument],
        # nothing that is printed before the fork is printed by the child, too
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert told in done.stderr
    begun = "imports kept others collected,"
    assert done.stdout == f"{begun}closed,child 0,closed,"


_PARSED = """
import runpy, sys

from headrace_airflow.component import preload
from headrace_airflow.service import dags_folder

preload([sys.argv[1], "--flag"])
before = set(sys.modules)
for file in dags_folder().glob("*.py"):
    runpy.run_path(str(file))
more = {name for name in sys.modules if name.split(".")[0] in ("headrace", "headrace_airflow")}
print(sorted(more - before))
"""


@pytest.mark.usefixtures("headrace_home")
@pytest.mark.parametrize("component", ["scheduler", "dag-processor"])
def test_the_children_of_a_component_import_no_more_of_headrace(component: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PARSED, component], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_was_read_is_kept(headrace_home, monkeypatch):
    run = make_run()
    ledgers._opened.cache_clear()
    warm_caches()
    monkeypatch.setattr(load, "parse", None)  # of sites that are read
    monkeypatch.setattr(ledgers.Ledger, "open", None)
    assert open_ledger().run(run.run_id).run_id == run.run_id
    assert open_run(run.run_id).site_now.name == run.site.name


def test_a_ledger_that_cannot_be_opened_is_told_and_no_obstacle(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HEADRACE_LEDGER", "mysql://nowhere/ledger")
    warm_caches()
    assert "names the database 'mysql'" in caplog.text


def test_a_run_that_cannot_be_read_is_told_and_no_obstacle(headrace_home, monkeypatch, caplog):
    make_run()
    monkeypatch.setattr(
        "headrace_airflow.warm_caches.run_details", lambda _: Path("/proc/self/mem").read_bytes()
    )
    warm_caches()
    assert "Input/output error" in caplog.text


KEY = TaskInstanceKey("headrace_train", "train", "manual__1", 1, -1)
TASK = SimpleNamespace(key=KEY)


def executor(num_waiting: int) -> LocalExecutor:
    """An executor that believes that the task runs; its workers are not started."""
    made = LocalExecutor(parallelism=1)
    made.running.add(KEY)
    made._unread_messages = multiprocessing.Value(ctypes.c_uint, num_waiting)
    return made


def test_a_lost_task_frees_its_place():
    busy = executor(num_waiting=0)
    busy.revoke_task(ti=TASK)
    assert busy.running == set()
    busy.revoke_task(ti=TASK)  # harmless when it is gone


def test_a_task_that_may_still_wait_for_a_worker_is_left_alone():
    busy = executor(num_waiting=1)
    with pytest.raises(NotImplementedError, match="1 tasks wait"):
        busy.revoke_task(ti=TASK)
    assert busy.running == {KEY}


def test_it_ends_with_its_workers_where_its_log_has_no_room(monkeypatch):
    """Python waits for them at its end: the scheduler would neither work nor be started again."""
    full = OSError(errno.ENOSPC, "No space left on device")
    ending = LocalExecutor(parallelism=2)
    ending.start()
    workers = list(ending.workers.values())
    monkeypatch.setattr(LocalExecutor, "log", SimpleNamespace(info=Mock(side_effect=full)))
    try:
        with pytest.raises(OSError, match="No space"):
            ending.end()
        for worker in workers:
            worker.join(60)
        assert not any(worker.is_alive() for worker in workers)
    finally:
        for worker in workers:
            worker.kill()


def test_headrace_up_uses_it(tmp_path):
    name = airflow_settings(tmp_path, 8081, tmp_path / "secret")["AIRFLOW__CORE__EXECUTOR"]
    assert name == f"{LocalExecutor.__module__}.{LocalExecutor.__qualname__}"


def test_whether_a_process_that_ends_listens_is_answered_to_ordinary_users():
    """Only root may look into a process that is ending: its files are not its owner's any more."""
    pid = os.fork()
    if not pid:  # no test framework: the answer is the exit code
        code = 2
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            ended = subprocess.Popen(["true"])
            os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
            code = int(listens(ended.pid, 1))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
