"""`headrace site check` on PBS, LSF, hosts by SSH, and through a login node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.recipe.batch import Login
from headrace.recipe.load import load_site
from headrace.site_check.check import NodeWait, try_host
from support.fake_queues.commands import FakeQueue, fake_queue
from support.login_node import LoginNode
from support.site_checks import check, graded, site_file

VERSIONS = {"pbs": "pbs_version = 23.06.06", "lsf": "IBM Spectrum LSF Standard"}


@pytest.fixture
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeQueue]:
    made = fake_queue(request.param, tmp_path / "fake")
    yield made
    made.end()


@pytest.fixture
def here(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands are on this machine."""
    for name, value in queue.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("queue", ["pbs", "lsf"], indirect=True)
def test_a_good_site_has_nothing_to_fix(
    queue: FakeQueue, here: None, headrace_home: Path, request: pytest.FixtureRequest
):
    system = request.node.callspec.params["queue"]
    code, found = check(_site(headrace_home, system))
    assert code == 0, found
    assert graded(found, "gpu", "fail") == {}
    told = graded(found, "gpu", "ok")
    assert VERSIONS[system] in told["commands"]
    assert told["time"].startswith("1 h of 48 h")
    assert queue.jobs() == []


@pytest.mark.parametrize(
    ("queue", "changes", "wrong", "told"),
    [
        ("pbs", {"batch": {"partition": "wrokq"}}, "queue", "Did you mean 'workq'?"),
        ("pbs", {"nodes": 5}, "nodes", "asks for 5 nodes, workq gives a job 4"),
        ("lsf", {"batch": {"partition": "old"}}, "queue", "old takes no jobs: it is Closed"),
        ("lsf", {"ranks_per_node": 33}, "nodes", "66 CPUs, normal gives a job 64"),
    ],
    indirect=["queue"],
)
def test_what_is_wrong_with_a_site_is_told(
    queue: FakeQueue,
    here: None,
    headrace_home: Path,
    changes: dict[str, Any],
    wrong: str,
    told: str,
    request: pytest.FixtureRequest,
):
    system = request.node.callspec.params["queue"]
    code, found = check(_site(headrace_home, system, **changes))
    assert code == 1
    assert told in graded(found, "gpu", "fail")[wrong]


@pytest.mark.parametrize("queue", ["pbs"], indirect=True)
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"host_options": ["-zap"]}, "invalid option -- 'zap'"),
        ({"batch": {"prologue": ["exit 7"]}}, "ended: failed"),
    ],
)
def test_a_host_that_cannot_be_a_job_is_told(
    queue: FakeQueue, here: None, headrace_home: Path, changes: dict[str, Any], told: str
):
    """The pool's nodes may be fine, and the small job of its host refused, or end at once."""
    batch = {"interface": "lo", "poll": 0.2, **changes.get("batch", {})}
    pool = {"backend": "pbs", "kind": "pool", "host": "job", "nodes": 2, "lifetime": 600}
    site = load_site(str(site_file(headrace_home, {**pool, **changes, "batch": batch})))
    (found,) = try_host(site, "gpu", NodeWait(60.0, lambda _: None))
    assert (found.subject, found.grade) == ("host", "fail")
    assert told in found.seen
    assert {job["state"] for job in queue.jobs()} <= {"ended"}


@pytest.mark.parametrize(
    ("queue", "partition", "told"),
    [("pbs", "gpu", "it is not started"), ("lsf", "gpu", "it is Inact")],
    indirect=["queue"],
)
def test_a_queue_that_starts_no_jobs_is_warned_of(
    queue: FakeQueue, here: None, headrace_home: Path, partition: str, told: str,
    request: pytest.FixtureRequest,
):  # fmt: skip
    system = request.node.callspec.params["queue"]
    _, found = check(_site(headrace_home, system, batch={"partition": partition}))
    assert told in graded(found, "gpu", "warn")["queue"]


@pytest.mark.parametrize(
    ("queue", "silence"),
    [("pbs", "cannot connect to server"), ("lsf", "LSF is down")],
    indirect=["queue"],
)
def test_commands_that_do_not_answer_are_named(
    queue: FakeQueue,
    here: None,
    headrace_home: Path,
    silence: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
):
    system = request.node.callspec.params["queue"]
    monkeypatch.setenv("FAKE_QUEUE_SILENT", "yes")
    code, found = check(_site(headrace_home, system))
    assert code == 1
    assert silence in graded(found, "gpu", "fail")["commands"]
    monkeypatch.setenv("PATH", "/nowhere")
    _, found = check(_site(headrace_home, system))
    assert "cannot be run: No such file" in graded(found, "gpu", "fail")["commands"]


@pytest.mark.parametrize("queue", ["pbs"], indirect=True)
def test_through_a_login_node_a_short_job_is_tried(
    queue: FakeQueue, login_node: LoginNode, headrace_home: Path
):
    """pains 14: one connection for all questions, the job and its end."""
    login_node.restart_with(f"SetEnv FAKE_QUEUE={queue.folder}")
    login = login_node.login.model_copy(update={"path": str(queue.programs)}).model_dump()
    site = _site(headrace_home, "pbs", nodes=1, batch={"login": login})
    code, found = check(site, "--submit")
    assert code == 0, found
    told = graded(found, "gpu", "ok")
    assert told["login"].startswith(f"{login['host']} runs commands")
    assert {"commands", "accounting", "queue", "time", "job", "clock", "python"} <= told.keys()
    assert [job["state"] for job in queue.jobs()] == ["ended"]
    assert login_node.num_connections == 1


@pytest.mark.parametrize("queue", ["lsf"], indirect=True)
def test_a_login_node_that_is_gone_or_has_no_commands_is_named(
    queue: FakeQueue, login_node: LoginNode, headrace_home: Path
):
    site = _site(headrace_home, "lsf", batch={"login": login_node.login.model_dump()})
    _, found = check(site)
    assert (
        "Name the folder of the batch system's commands as `login.path`"
        in (graded(found, "gpu", "fail")["commands"])
    )
    login_node.stop()
    code, found = check(site)
    assert code == 1
    assert "cannot be reached by ssh" in graded(found, "gpu", "fail")["login"]


def test_hosts_are_tried_and_what_they_lack_is_told(login_node: LoginNode, headrace_home: Path):
    first, other = _hosts(login_node)
    changes = {"kind": "gang", "nodes": 2, "batch": {"hosts": [first, other], "interface": "lo"}}
    code, found = check(_site(headrace_home, "ssh", **changes))
    assert code == 0, found
    told = graded(found, "gpu", "ok")
    assert {first["host"], other["host"], "folder", "python"} <= told.keys()
    assert told[f"{first['host']} to {other['host']}"].startswith("runs commands by ssh")

    gone = {**other, "host": "nobody@localhost"}
    batch = changes["batch"] | {"hosts": [first, gone], "python": "/opt/none/python"}
    code, found = check(_site(headrace_home, "ssh", **changes | {"batch": batch}))
    assert code == 1
    failed = graded(found, "gpu", "fail")
    assert "cannot be reached by ssh" in failed["nobody@localhost"]
    assert "Install headrace there" in failed["python"]


def _hosts(node: LoginNode) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two names of one machine."""
    known = node.folder / "known_hosts"
    known.write_text(known.read_text() + known.read_text().replace("127.0.0.1", "localhost"))
    first: Login = node.login
    other = first.model_copy(update={"host": first.host.replace("127.0.0.1", "localhost")})
    return first.model_dump(), other.model_dump()


def _site(home: Path, system: str, **changes: Any) -> Path:
    batch = {"interface": "lo", "poll": 0.2, **changes.pop("batch", {})}
    role = {"backend": system, "kind": "gang", "nodes": 2, "lifetime": "1h", "batch": batch}
    return site_file(home, role | changes)
