"""headrace's pages in a real Airflow: who may see what, who may act, what is sent."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from headrace.clusters.lease_records import Ending
from headrace.execution.reap import end_run
from headrace.files.atomic import is_there, write_record
from headrace.files.lines import read_lines
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.runs.audit import AIRFLOW, Actor, note
from headrace.runs.runs import Run
from headrace.states import LeaseState, StepState
from headrace.suites.records import Control
from support.access import write_site
from support.airflow_service import AirflowService
from support.ledger_rows import machine_row, usage_row
from support.page_logins import NOBODY, ROLES, SECRET, Doors, doors, echoing_lease
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.suite_journal import make_suite
from support.waiting import wait_until

__all__ = ["doors"]

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

PAGES = ("run", "suite", "leases", "datasets", "cost", "dask", "tensorboard")
SHELLS = ("/", *(f"/{page}/" for page in PAGES), "/static/index.html")
DATA: dict[str, dict[str, object]] = {
    "/data/runs": {"limit": 5},
    "/data/added": {"name": "none"},
    "/data/run": {"id": "RUN"},
    "/data/curves": {"id": "RUN"},
    "/data/compare": {"id": "RUN"},
    "/data/run/log": {"id": "RUN", "step": "pack", "attempt": 1, "name": "driver"},
    "/data/run/report": {"id": "RUN"},
    "/data/suite": {"id": "RUN"},
    "/data/trials": {"id": "RUN", "since": 0},
    "/data/leases": {},
    "/data/datasets": {},
    "/data/dataset": {"id": "RUN"},
    "/data/sample": {"id": "RUN", "split": "train", "index": 0},
    "/data/cost": {"by": "month"},
    "/data/open": {"kind": "tensorboard", "id": "RUN"},
}
MISSING = {
    **dict.fromkeys(("/data/run/log", "/data/run/report", "/data/dataset", "/data/sample"), 404),
    "/data/added": 404,
    "/data/open": 409,
}
"""Of a run that has not begun."""
PROXY = "/proxy/{text}/{path:path}"
"""What a ticket opens, whoever shows it."""
NO_RIGHTS = (
    "sandbox allow-scripts; form-action 'none'; base-uri 'none'; "
    "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'self'"
)
ACTS: dict[str, dict[str, object]] = {
    "/act/cancel": {"id": "digits-2"},
    "/act/suite": {"id": "digits-2", "what": "pause"},
    "/act/suite/add": {"id": "digits-2", "words": "seed=4"},
    "/act/lease": {"id": "digits-2"},
    "/act/mark": {"ids": ["digits-2"], "tag": ["paper"]},
}


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


@pytest.fixture(scope="module")
def run(airflow_service: AirflowService) -> Iterator[Run]:
    """A suite of which nothing has begun."""
    with airflow_service.settings():
        made = make_suite(overrides=("trainer.max_epochs=1",))
        yield made
        end_run(made, StepState.CANCELLED, "a test")


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follows nothing."""


def ask(
    service: AirflowService,
    path: str,
    token: str = "",
    body: object = None,
    headers: Mapping[str, str] | None = None,
    *,
    follow: bool = True,
) -> Answer:
    """Ask the pages' app."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    if token:
        sent["Authorization"] = f"Bearer {token}"
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{service.url}/headrace{path}", content, sent)
    try:
        handlers = () if follow else (_Stay,)
        with urllib.request.build_opener(*handlers).open(request) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


def test_who_may_see_and_act(airflow_service: AirflowService, doors: Doors, run: Run):
    """Anonymous, without a role, viewer, user, op, admin: every endpoint."""

    def status(path: str, who: str, **more: Any) -> int:
        return ask(airflow_service, path, doors.tokens.get(who, ""), **more).status

    people = ("anonymous", NOBODY, *ROLES)
    for path in SHELLS:
        assert [status(path, who) for who in people] == [200] * 6, path
    for path, query in DATA.items():
        asked = f"{path}?{urlencode(query)}".replace("RUN", run.run_id)
        seen = MISSING.get(path, 200)
        assert [status(asked, who) for who in people] == [401, 403] + [seen] * 4, path
    for path, body in ACTS.items():
        told = [status(path, who, body=body) for who in people]
        assert told == [401, 403, 403, 404, 404, 404], path
    assert set(doors.paths) == {"/", "/{page}/", "/added/{name}.js", "/static", PROXY, *DATA, *ACTS}
    for ticket in ("x", doors.old_ticket, *doors.tokens.values()):
        assert [status(f"/proxy/{ticket}/status", who) for who in people] == [403] * 6


@pytest.fixture
def club(airflow_service: AirflowService) -> Iterator[Run]:
    """A suite, with a dataset and costs, on a site for the user `viewer` and a team only."""
    home = airflow_service.home
    write_site(home, ["viewer", "@vision"], limits={"budget_user": 40}, folder=str(home / "club"))
    (home / "teams.yaml").write_text("vision: [ada]\n")
    with airflow_service.settings():
        made = make_suite(site="club", user="viewer", overrides=("trainer.max_epochs=1",))
        lease_id = lease_on_disk(made)
        packed = {"dataset": str(home / "club"), "fingerprint": "c1b5", "reused": False}
        state = StepState.SUCCEEDED
        attempt_row_of(made, "pack", lease_id, kind="pack", state=state, outputs=packed)
        open_ledger().put_machines([machine_row(lease_id=lease_id, usd_per_hour=360.0)])
        open_ledger().put_usage([usage_row(1, run_id=made.run_id, lease_id=lease_id)])
        yield made
        end_run(made, StepState.CANCELLED, "a test")
    (home / "sites" / "club.yaml").unlink()
    (home / "teams.yaml").unlink()


def test_runs_of_a_site_for_some_users_are_shown_to_these_and_to_who_runs_airflow(
    airflow_service: AirflowService, doors: Doors, run: Run, club: Run
):
    """A viewer who is listed, a user who is not, an op and an admin: every endpoint."""
    people = ("viewer", "user", "op", "admin")

    def answers(path: str, **more: Any) -> list[Answer]:
        return [ask(airflow_service, path, doors.tokens[who], **more) for who in people]

    lists = {"/data/runs", "/data/leases", "/data/datasets", "/data/cost"}
    by_fingerprint = {"/data/dataset", "/data/sample"}
    for path, query in DATA.items():
        name = "c1b5" if path in by_fingerprint else club.run_id
        told = answers(f"{path}?{urlencode(query)}".replace("RUN", name))
        codes = [each.status for each in told]
        if path in lists:
            assert codes == [200] * 4, path

            def shown(path: str = path) -> bool:
                query = "by=site" if path == "/data/cost" else "limit=1000"
                found = [b"club" in each.body for each in answers(f"{path}?{query}")]
                assert not found[1], path
                return found == [True, False, True, True]

            wait_until(shown, 30.0, f"the club in {path}")  # an answer is kept for a moment
        elif path in by_fingerprint:
            assert codes[1] == 404, path
            assert b"No run of the ledger has a dataset" in told[1].body
            assert b"No run of the ledger" not in told[0].body + told[2].body + told[3].body
        elif path == "/data/added":
            assert codes == [404] * 4  # it is of no run
        else:
            assert codes[1] == 403, path
            assert told[1].json["detail"]["what"] == "Runs of site club are not shown to you"
            assert codes == [codes[0], 403, codes[0], codes[0]], path
            assert codes[0] == MISSING.get(path, 200), path
    for both in ("curves", "compare"):
        asked = urlencode({"id": [run.run_id, f"{club.run_id}:1"]}, doseq=True)
        assert ask(airflow_service, f"/data/{both}?{asked}", doors.tokens["user"]).status == 403
    key = dict(zip(("dag_id", "dag_run_id"), ("headrace_train", "club"), strict=True))
    with airflow_service.settings():
        made = make_run(site="club", user="viewer", key="airflow:headrace_train:club")
        end_run(made, StepState.CANCELLED, "a test")
    found = [each.status for each in answers(f"/data/run?{urlencode(key)}")]
    assert found == [200, 403, 200, 200]
    refused = "airflow:headrace_train:refused"
    with airflow_service.settings():
        note(Actor("viewer", AIRFLOW), "start", refused, "site=club", "no such key")
    for place in ({"id": refused}, {**key, "dag_run_id": "refused"}):
        told = answers(f"/data/run?{urlencode(place)}")
        assert [each.status for each in told] == [409, 404, 409, 409]
        assert [b"no such key" in each.body for each in told] == [True, False, True, True]
    listed = [b"no such key" in each.body for each in answers("/data/runs?state=failed&text=club")]
    assert listed == [True, False, True, True]
    (lease,) = airflow_service.ledger.leases(run_id=club.run_id)
    asked = urlencode({"kind": "dask", "id": lease.lease_id})
    assert [each.status for each in answers(f"/data/open?{asked}")] == [409, 403, 409, 409]
    for path, body in ACTS.items():
        given = {**body, "id": lease.lease_id if path == "/act/lease" else club.run_id}
        given = {**body, "ids": [club.run_id]} if path == "/act/mark" else given
        assert ask(airflow_service, path, doors.tokens["user"], given).status == 403, path
    assert not club.folder.controls.exists()
    rows = airflow_service.ledger.acts(user="user", run_id=club.run_id)
    noted = [(row.what, row.refused) for row in reversed(rows)]
    why = "Runs of site club are not shown to you"
    assert noted == [(what, why) for what in ("cancel", "pause", "add", "close", "mark")]
    mine = ask(airflow_service, f"/data/run?id={run.run_id}", doors.tokens["user"])
    assert mine.status == 200  # of a site that is for everybody


def test_runs_are_marked_and_found_through_rest(airflow_service: AirflowService, doors: Doors):
    with airflow_service.settings():
        run = make_suite(overrides=("trainer.max_epochs=1",))
        end_run(run, StepState.CANCELLED, "a test")

    def asked(path: str, body: object = None) -> Answer:
        return ask(airflow_service, path, doors.tokens["op"], body)

    marks = {"ids": [run.run_id], "tag": ["paper"], "note": "table 2", "star": True}
    assert asked("/act/mark", marks).json == {"done": "Marked 1 run"}
    query = "tag=Paper&starred=true&where=trainer.max_epochs%3D1&since=1d&text=TABLE&kind=suite"
    (row,) = asked(f"/data/runs?{query}").json["rows"]
    assert (row["tags"], row["note"], row["is_starred"]) == (["paper"], "table 2", True)
    (act,) = airflow_service.ledger.acts(user="op", run_id=run.run_id)
    assert (act.what, act.through) == ("mark", "Airflow")
    for path, body, status in (
        ("/act/mark", {"ids": [run.run_id], "tag": ["a b"]}, 422),
        ("/act/mark", {"ids": [run.run_id], "note": "n" * 2001}, 422),
        ("/act/mark", {"ids": [run.run_id], "untag": ["none"]}, 404),
        ("/act/mark", {"ids": [], "star": True}, 422),
        ("/data/runs?sort=acuracy", None, 404),
        ("/data/runs?where=lr", None, 409),
        ("/data/runs?since=soon", None, 409),
        ("/data/runs?limit=1001", None, 422),
        ("/data/runs?usr=ada", None, 422),
    ):
        assert asked(path, body).status == status, (path, body)
    assert "metric 'acuracy'" in asked("/data/runs?sort=acuracy").json["detail"]["what"]


def test_an_unchanged_answer_is_not_sent_again(
    airflow_service: AirflowService, doors: Doors, run: Run
):
    path = f"/data/run?id={run.run_id}"
    first = ask(airflow_service, path, doors.tokens["viewer"])
    assert first.json["run_id"] == run.run_id
    assert first.json["can_act"] is False
    again = {"If-None-Match": first.headers["ETag"]}
    assert ask(airflow_service, path, doors.tokens["viewer"], headers=again)[::2] == (304, b"")
    other = ask(airflow_service, path, doors.tokens["user"], headers=again)
    assert (other.status, other.json["can_act"]) == (200, True)


def test_acts_are_done_in_the_name_of_who_asks(
    airflow_service: AirflowService, doors: Doors, run: Run
):
    def act(path: str, **body: object) -> Answer:
        return ask(airflow_service, f"/act/{path}", doors.tokens["op"], body)

    asked = act("suite", id=run.run_id, what="pause")
    assert asked.json == {"done": "Requested: pause"}
    (control,) = read_lines(run.folder.controls, Control)
    assert (control.what, control.by) == ("pause", "op in Airflow")
    answer = act("suite", id=run.run_id, what="retry", trials=[7])
    assert (answer.status, answer.json["detail"]["hint"]) == (
        404,
        f"List its trials: headrace suite show {run.run_id}.",
    )
    assert act("suite", id=run.run_id, what="limit").status == 422
    for words, told in (("", "The values are missing"), ("seed='1", "The values cannot be read")):
        answer = act("suite/add", id=run.run_id, words=words)
        assert (answer.status, answer.json["detail"]["what"].partition(":")[0]) == (409, told)
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    run.lease_folder(lease_id).host.unlink()  # it waits for one

    def may_be_closed() -> bool:
        page = ask(airflow_service, "/data/leases", doors.tokens["op"]).json
        assert page["can_act"]
        return any(
            row["state"] == "starting" for row in page["rows"] if row["lease_id"] == lease_id
        )

    wait_until(may_be_closed, 60.0, "the lease to be listed")  # an answer is kept for a moment
    assert act("lease", id=lease_id).status == 200
    assert is_there(run.lease_folder(lease_id).closed)
    rows = airflow_service.ledger.acts(run_id=run.run_id)
    noted = [(row.user, row.through, row.what, row.details) for row in rows]
    assert noted[:2] == [("op", "Airflow", "close", lease_id), ("op", "Airflow", "pause", "")]
    assert {row.what for row in rows[2:]} == {"start"}  # what failed was no act
    shown = ask(airflow_service, f"/data/suite?id={run.run_id}", doors.tokens["viewer"]).json
    assert [(row["user"], row["what"]) for row in shown["acts"][:2]] == [
        ("op", "close"), ("op", "pause")
    ]  # fmt: skip
    assert act("cancel", id=run.run_id).json == {"done": "The run is cancelled"}
    answer = act("cancel", id=run.run_id)
    assert answer.status == 409
    assert answer.json["detail"]["what"] == f"No step of run {run.run_id} is running"


def test_what_is_not_there_is_told_and_paths_are_no_names(
    airflow_service: AirflowService, doors: Doors, run: Run
):
    def refused(path: str, **query: object) -> Answer:
        return ask(airflow_service, f"{path}?{urlencode(query)}", doors.tokens["admin"])

    answer = refused("/data/run", id="digits-2")
    assert (answer.status, answer.json["detail"]["what"]) == (
        404,
        "There is no run 'digits-2' in the ledger",
    )
    for name in ("../../request.json", "/etc/passwd", "..", "", "driver.log", "%2e%2e/spec"):
        answer = refused("/data/run/log", id=run.run_id, step="pack", attempt=1, name=name)
        assert answer.status == 404, name
        assert "has no log" in answer.json["detail"]["what"]
    for name in ("../../etc", "/etc/passwd", "..", "digits/../digits"):
        for path, more in (("/data/dataset", {}), ("/data/sample", {"split": "../.."})):
            answer = refused(path, id=name, **more)
            assert answer.status == 404, name
            assert "No run of the ledger has a dataset" in answer.json["detail"]["what"]
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py"):
        assert ask(airflow_service, path).status == 404, path
    assert refused("/data/runs", limit=0).status == 422
    assert refused("/data/run", dag_id="headrace_train", dag_run_id="x").status == 404


def test_a_ticket_opens_the_pages_of_its_lease_and_nothing_else(
    airflow_service: AirflowService, doors: Doors
):
    """No cookie, login, policy or address passes; the target is what the lease's files say."""

    def opened(lease_id: str, who: str = "viewer") -> str:
        asked = urlencode({"kind": "dask", "id": lease_id})
        answer = ask(airflow_service, f"/data/open?{asked}", doors.tokens[who])
        assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-store"), answer.body
        address, first = answer.json["address"].rsplit("/", 1)
        assert first == "status"
        return f"/{address}/"

    secrets = {"Cookie": f"_token={doors.tokens['admin']}", "Authorization": "Bearer mine"}
    with airflow_service.settings(), ExitStack() as until_gone:
        made = make_run()
        until_gone.callback(end_run, made, StepState.CANCELLED, "a test")
        with echoing_lease(made, "cpu") as other:
            theirs = opened(other.lease_id)
        lease = until_gone.enter_context(echoing_lease(made, "gpu"))
        for each in (other, lease):
            until_gone.callback(each.host.unlink)  # nobody waits for this process to end
        pages = opened(lease.lease_id)
        answer = ask(airflow_service, f"{pages}status?a=%2F&b", headers=secrets)
        assert (answer.status, answer.json["path"]) == (200, f"/{SECRET}/status?a=%2F&b")
        passed = {name.lower() for name in answer.json["headers"]}
        assert passed <= {"host", "accept", "accept-encoding", "user-agent", "content-type"}
        assert "Set-Cookie" not in answer.headers
        assert answer.headers.get_all("Content-Security-Policy") == [NO_RIGHTS]
        assert "Location" not in ask(airflow_service, f"{pages}away", follow=False).headers
        refused = ask(airflow_service, f"{pages}status", body={})
        assert (refused.status, refused.json["detail"]["what"]) == (
            405,
            "These pages are for reading only",
        )
        for path in ("//127.0.0.1:1/x", "@127.0.0.1:1/", "http://127.0.0.1:1/", "%3Fa", "%23"):
            answer = ask(airflow_service, f"{pages}{path}")
            assert answer.json["path"].startswith(f"/{SECRET}/"), path
            assert answer.json["headers"]["Host"].startswith("127.0.0.1:")
        for path in ("../status", "%2e%2e/status", "a%2F..%2F..%2Fb"):
            assert ask(airflow_service, f"{pages}{path}").status == 404, path
        (_, mine, _), (_, other_one, _) = pages[1:].split("/"), theirs[1:].split("/")
        mixed = ".".join([other_one.rsplit(".", 2)[0], *mine.rsplit(".", 2)[1:]])
        for ticket in (mixed, mine[:-9] + mine[-9:][::-1], mine[1:]):
            assert ask(airflow_service, f"/proxy/{ticket}/status").status == 403, ticket
        with pytest.raises(InvalidStatus, match="403"):
            connect(f"{airflow_service.url}/headrace/proxy/{mixed}/x".replace("http", "ws"))
        answer = ask(airflow_service, f"{theirs}status")  # its server has gone, it has not ended
        assert (answer.status, "ssh -N -L" in answer.json["detail"]["hint"]) == (502, True)
        shutil.copy(lease.scheduler_file, other.scheduler_file)  # another one has come to its port
        answer = ask(airflow_service, f"{theirs}status")
        assert (answer.status, "certificate" in answer.json["detail"]["what"]) == (502, True)
        write_record(lease.closed, Ending(state=LeaseState.CLOSED, reason="done"))
        answer = ask(airflow_service, f"{pages}status")
        assert (answer.status, answer.json["detail"]["what"]) == (
            409,
            f"Lease {lease.lease_id} is closed: done",
        )
    for kind, given, status in (
        ("dask", "../x", 404),
        ("tensorboard", "x", 404),
        ("http", "x", 422),
    ):
        asked = urlencode({"kind": kind, "id": given})
        assert ask(airflow_service, f"/data/open?{asked}", doors.tokens["op"]).status == status


def test_a_report_has_no_rights(airflow_service: AirflowService, doors: Doors):
    with airflow_service.settings():
        made = make_run()
        made.folder.report.mkdir()
        report = made.folder.report / "report.html"
        report.write_text("<script>alert(1)</script>")
        given = {"state": StepState.SUCCEEDED, "outputs": {"report": str(report)}}
        attempt_row_of(made, "evaluate", lease_on_disk(made, "gpu"), **given)
        end_run(made, StepState.SUCCEEDED, "a test")
    told = ask(airflow_service, f"/data/run/report?id={made.run_id}", doors.tokens["viewer"])
    assert (told.status, told.body) == (200, report.read_bytes())
    assert told.headers["Content-Type"].startswith("text/html")
    assert told.headers["X-Content-Type-Options"] == "nosniff"
    policy = told.headers["Content-Security-Policy"].split("; ")
    assert {"sandbox", "default-src 'none'", "frame-ancestors 'self'"} <= set(policy)
