"""The parts of `headrace up` that are functions of their arguments."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket

import pytest
from airflow.configuration import conf

from headrace.cli.airflow_server import make_login
from headrace.errors import UserError
from headrace_airflow.bundle import HeadraceDagBundle
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
