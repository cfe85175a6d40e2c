"""One real Airflow for the whole test session, with headrace's DAGs, and questions about its runs.

The service has a home of its own: `$HEADRACE_HOME` of the tests is not touched by it. Site `chaos`
is `laptop` with room for more leases, staging below the home, and quicker looks at running work;
site `narrow` is the same with room for three leases, site `aws` with room for one. Recipe
`held` is `digits` with a training that waits on request; `objective` and `waiting` call a function.
`headrace_train` is scheduled on the dataset that recipe `arrivals` packs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import pytest
import yaml

from headrace.cli import airflow_server
from headrace.cli.airflow_server import AirflowApi, AirflowBusyError
from headrace.errors import UnknownNameError
from headrace.execution.reap import end_run
from headrace.files.atomic import write_text
from headrace.files.layout import StepFolder
from headrace.ledger.ledger import Ledger
from headrace.recipe.load import BUILT_IN
from headrace.runs.runs import Run, open_run
from headrace.states import StepState
from headrace.status.run_details import RunDetails, run_details
from headrace.steps import mailbox
from headrace.steps.mailbox import StepStatus
from support.command_line import headrace
from support.leftovers import describe, last_will, started_by
from support.mail_server import mail_server
from support.poisoned import Poisoned
from support.s3_servers import aws_settings
from support.scheduling import shares_airflow
from support.waiting import wait_until

DAG_ID = "headrace_train"
PACK_DAG_ID = "headrace_pack"
SITE = "chaos"
NARROW_SITE = "narrow"
NARROW_LEASES = 3
"""Leases that site `narrow` gives at once."""
EC2_SITE = "aws"
"""Site that is as `chaos` until a test writes it anew: forms know the sites of the start."""
ARRIVALS = "arrivals"
"""Recipe of the runs that start by themselves, and the dataset whose packing starts them."""
OWN_DATA = "own-data"
"""Recipe of a function that needs no dataset."""
ENDED = ("success", "failed")
LONG_S = 300.0
"""More than a run takes on a machine that has a lot else to do."""

_SITE_FILE = """\
name: {name}
folder: {home}
roles:
  cpu: {{backend: local, kind: pool, nodes: 1, idle_stop: 300, lifetime: 1800}}
  gpu: {{backend: local, kind: gang, nodes: 1, ranks_per_node: 2, idle_stop: 300, lifetime: 1800}}
tiers:
  - {{name: disk, folder: "{home}/cache", budget: 2GiB}}
allowed_code: [{code}]
allowed_outputs: ["{home.parent}"]
limits: {{max_leases: {max_leases}, step_poll: 0.5, heartbeat: 1, lost_after: 60}}
"""

_CODE = Path(__file__).parent / "training_code"

_DOWN = "from headrace.cli.airflow_server import down; down()"

_OWN_SETTINGS = (
    "HEADRACE_LEDGER",
    "HEADRACE_DIGITS",
    "HEADRACE_RECIPES_PATH",
    "HEADRACE_SITES_PATH",
    "HEADRACE_TEST_ID",
)

Answer = TypeVar("Answer")


class TaskApi(AirflowApi):
    """Airflow's REST API with the calls behind the buttons of its web UI."""

    @property
    def token(self) -> str:
        """What logs in once more; empty before the first question."""
        return self._token

    def trigger_as(self, dag_id: str, dag_run: str, conf: Mapping[str, object]) -> str:
        """As `trigger`, with an id for the DAG run that the caller chooses."""
        body = {"dag_run_id": dag_run, "logical_date": None, "conf": dict(conf)}
        return str(self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def connect(self, connection_id: str, password: str) -> None:
        """The form that adds a connection."""
        body = {"connection_id": connection_id, "conn_type": "http", "password": password}
        self._call("POST", "/api/v2/connections", body)

    def cookie(self) -> str:
        """Of a browser that has logged in."""
        self.health()
        return self._token

    def tasks(self, dag_id: str, dag_run: str) -> list[dict[str, Any]]:
        """Task instances of a DAG run, as the API gives them."""
        answer = self._call("GET", f"{_run_path(dag_id, dag_run)}/taskInstances?limit=100")
        return list(answer["task_instances"])

    def xcom(self, dag_id: str, dag_run: str, task_id: str, key: str) -> object:
        """Value of an XCom of a task."""
        path = f"{_run_path(dag_id, dag_run)}/taskInstances/{task_id}/xcomEntries/{key}"
        return self._call("GET", path)["value"]

    def params(self, dag_id: str) -> dict[str, Any]:
        """Parameters of a DAG, as its form has them."""
        return dict(self._call("GET", f"/api/v2/dags/{dag_id}/details")["params"])

    def links(self, dag_id: str, dag_run: str, task_id: str) -> dict[str, str]:
        """Addresses of the links of a task, by their names."""
        path = f"{_run_path(dag_id, dag_run)}/taskInstances/{task_id}/links"
        return dict(self._call("GET", path)["extra_links"])

    def page(self, name: str, **query: object) -> dict[str, Any]:
        """What one of headrace's pages shows."""
        return self._call("GET", f"/headrace/data/{name}?{urlencode(query)}")

    def act(self, name: str, **body: object) -> None:
        """A button of headrace's pages."""
        self._call("POST", f"/headrace/act/{name}", body)

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The newest DAG runs."""
        path = f"/api/v2/dags/{dag_id}/dagRuns?limit=100&order_by=-run_after"
        return list(self._call("GET", path)["dag_runs"])

    def note(self, dag_id: str, dag_run: str) -> str | None:
        """What is noted beside a DAG run."""
        return self._call("GET", _run_path(dag_id, dag_run))["note"]

    def triggering_events(self, dag_id: str, dag_run: str) -> list[dict[str, Any]]:
        """Events of assets that started a DAG run."""
        answer = self._call("GET", f"{_run_path(dag_id, dag_run)}/upstreamAssetEvents")
        return list(answer["asset_events"])

    def asset_events(self, uri: str) -> list[dict[str, Any]]:
        """Events of an asset."""
        events = self._call("GET", "/api/v2/assets/events?limit=1000")["asset_events"]
        return [event for event in events if event["uri"] == uri]

    def mark_task(self, dag_id: str, dag_run: str, task_id: str, state: str) -> None:
        """The buttons that mark a task as failed or as success."""
        path = f"{_run_path(dag_id, dag_run)}/taskInstances/{quote(task_id)}"
        self._call("PATCH", path, {"new_state": state})

    def mark_run(self, dag_id: str, dag_run: str, state: str) -> None:
        """The buttons that mark a DAG run as failed or as success; clearing makes it `queued`."""
        self._call("PATCH", _run_path(dag_id, dag_run), {"state": state})

    def delete_run(self, dag_id: str, dag_run: str) -> None:
        """The button that deletes a DAG run; Airflow refuses while it is running."""
        self._call("DELETE", _run_path(dag_id, dag_run))

    def clear(self, dag_id: str, dag_run: str, tasks: Sequence[str], *, downstream: bool) -> None:
        """The button that clears tasks: they run again."""
        body = {
            "dry_run": False,
            "dag_run_id": dag_run,
            "task_ids": list(tasks),
            "only_failed": False,
            "include_downstream": downstream,
            "reset_dag_runs": True,
        }
        self._call("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", body)


def _run_path(dag_id: str, dag_run: str) -> str:
    return f"/api/v2/dags/{dag_id}/dagRuns/{quote(dag_run)}"


class AirflowService:
    """A running Airflow.

    Args:
        home: Home of headrace that it works in.
        connection: Connection of its notifiers to a mail server.
        mails: What that server has received.
    """

    def __init__(self, home: Path, connection: str, mails: list[str]) -> None:
        self._connection, self.mails = connection, mails
        self.home = home
        """Value of `$HEADRACE_HOME` of everything that belongs to this service."""
        self.here = Poisoned(home.with_name(f"{home.name}-here"))
        """Folder in which it is started: no process of it may import a module from there."""
        with self.settings():
            self.ledger = Ledger.open()
        self.come_up()

    def come_up(self) -> None:
        """`headrace up`: start all components of Airflow, and wait until they are healthy."""
        with self.settings(), pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.here.folder)
            patch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")  # is refused
            self.told = headrace("up").stdout
            server = airflow_server.running()
            assert server is not None, self.told
            self.server = server
            self.login = airflow_server.login()
        self.url = self.server.url
        """Address of the web UI."""
        self.api = TaskApi(self.url, self.login)

    def go_down(self) -> None:
        """`headrace down`: stop all components of Airflow; leases go on."""
        with self.settings():
            assert headrace("down").stdout == "Airflow is down\n"
            assert not airflow_server.processes(), describe(airflow_server.processes())
            assert not airflow_server.record_file().exists()
            assert headrace("down").stdout == "Airflow was not up\n"

    @contextmanager
    def site_with(self, **keys: object) -> Iterator[None]:
        """Have runs of site `chaos` that are made meanwhile get a site with these keys."""
        file = self.home / "sites" / f"{SITE}.yaml"
        before = file.read_text()
        write_text(file, yaml.safe_dump({**yaml.safe_load(before), **keys}))
        try:
            yield
        finally:
            write_text(file, before)  # at once: runs that are being made read it

    @contextmanager
    def settings(self) -> Iterator[None]:
        """The environment in which headrace's own functions and commands mean this service."""
        with pytest.MonkeyPatch.context() as patch:
            inherited = [name for name in os.environ if name.startswith("AIRFLOW")]
            for name in (*_OWN_SETTINGS, *inherited):
                patch.delenv(name, raising=False)
            patch.setenv("HEADRACE_HOME", str(self.home))
            patch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", self._connection)
            patch.setenv("HEADRACE_TRAIN_SCHEDULE", ARRIVALS)
            patch.setenv("HEADRACE_DEFAULT_RECIPE", ARRIVALS)
            patch.setenv("HEADRACE_DEFAULT_SITE", SITE)
            for name, value in aws_settings().items():
                patch.setenv(name, value)
            yield

    def trigger(
        self,
        recipe: str = "digits",
        site: str = SITE,
        overrides: Sequence[str] = (),
        dag_id: str = DAG_ID,
    ) -> str:
        """Trigger a DAG.

        Returns:
            The id of the DAG run.
        """
        conf = {"recipe": recipe, "site": site, "overrides": list(overrides)}
        return self.api.trigger(dag_id, conf)

    def wait_for_run(self, dag_run: str, dag_id: str = DAG_ID, timeout_s: float = LONG_S) -> str:
        """Wait until a DAG run has made its run in the ledger, and give that run's id."""
        key = f"airflow:{dag_id}:{dag_run}"
        record = wait_until(lambda: self.ledger.run_by_key(key), timeout_s, f"the run of {dag_run}")
        return record.run_id

    def wait_end(self, dag_run: str, timeout_s: float = LONG_S, dag_id: str = DAG_ID) -> str:
        """Wait until a DAG run has ended, and give its state: `success` or `failed`."""

        def ended() -> str:
            state = self.asked(lambda: self.api.run_state(dag_id, dag_run))
            return state if state in ENDED else ""

        try:
            return wait_until(ended, timeout_s, f"DAG run {dag_run} to end", poll_s=0.5)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.task_states(dag_run, dag_id)}") from late

    def task_states(self, dag_run: str, dag_id: str = DAG_ID) -> dict[str, str | None]:
        """State of each task of a DAG run; None before it is scheduled."""
        return {name: task["state"] for name, task in self.tasks(dag_run, dag_id).items()}

    def tasks(self, dag_run: str, dag_id: str = DAG_ID) -> dict[str, dict[str, Any]]:
        """Task instances of a DAG run by task id, as the API gives them: `id`, `try_number`, …"""
        found = self.asked(lambda: self.api.tasks(dag_id, dag_run))
        return {task["task_id"]: task for task in found}

    def wait_task(
        self, dag_run: str, task_id: str, state: str, timeout_s: float = LONG_S
    ) -> dict[str, Any]:
        """Wait until a task is in a state, and give the task as `tasks` does."""

        def reached() -> dict[str, Any] | None:
            task = self.tasks(dag_run).get(task_id, {})
            return task if task.get("state") == state else None

        what = f"task {task_id} of {dag_run} to be {state}"
        found = wait_until(reached, timeout_s, what, poll_s=0.3)
        assert found is not None
        return found

    def task_log(self, dag_id: str, dag_run: str, task_id: str) -> str:
        """The log of all tries of a task, as Airflow wrote it."""
        folder = self.home / "airflow" / "logs" / "tasks"
        logs = folder / f"dag_id={dag_id}" / f"run_id={dag_run}" / f"task_id={task_id}"
        return "".join(log.read_text(errors="replace") for log in sorted(logs.glob("*.log")))

    def xcom(self, dag_run: str, task_id: str, key: str, dag_id: str = DAG_ID) -> object:
        """Value of an XCom of a task, as the web UI shows it; waits until it is pushed."""
        found: list[object] = []

        def pushed() -> bool:
            with suppress(UnknownNameError):
                found.append(self.asked(lambda: self.api.xcom(dag_id, dag_run, task_id, key)))
            return bool(found)

        wait_until(pushed, 120.0, f"{key} of {task_id}", poll_s=0.5)
        return found[0]

    def note(self, dag_run: str, dag_id: str = DAG_ID) -> str | None:
        """The note of a DAG run."""
        return self.asked(lambda: self.api.note(dag_id, dag_run))

    def asked(self, question: Callable[[], Answer], timeout_s: float = 120.0) -> Answer:
        """Ask the API; an API server that stalls for a moment is asked again."""
        answers: list[Answer] = []

        def answered() -> bool:
            try:
                answers.append(question())
            except AirflowBusyError:
                return False
            return True

        wait_until(answered, timeout_s, "Airflow's API to answer", poll_s=0.5)
        return answers[0]

    def run(self, run_id: str) -> Run:
        """A run with its folder, recipe and site."""
        with self.settings():
            return open_run(run_id)

    def overview(self, run_id: str) -> RunDetails:
        """How a run stands, as `headrace status` shows it."""
        with self.settings():
            return run_details(run_id)

    def step_folder(self, run_id: str, step: str) -> StepFolder | None:
        """Folder of the newest attempt at a step; None before it is submitted."""
        latest = self.ledger.latest_attempt(run_id, step)
        if latest is None or latest.number is None:
            return None
        return self.run(run_id).lease_folder(latest.lease_id).step(latest.number)

    def step_status(self, run_id: str, step: str) -> StepStatus | None:
        """How the newest attempt at a step stands; None before it is submitted."""
        folder = self.step_folder(run_id, step)
        return None if folder is None else mailbox.status(folder)

    def why(self, dag_run: str, run_id: str, dag_id: str = DAG_ID) -> str:
        """What became of each task and attempt, for failures of tests."""
        tasks = self.tasks(dag_run, dag_id)
        lines = [
            f"{name}: {task['state']}, try {task['try_number']}" for name, task in tasks.items()
        ]
        lines += [
            f"{one.step}, attempt {one.attempt}: {one.state.value} {one.message}"
            for one in self.ledger.attempts(run_id)
        ]
        for name, task in tasks.items():
            if task["state"] == "failed":
                lines.append(f"{name} at the end:\n{self.task_log(dag_id, dag_run, name)[-3000:]}")
        return "\n".join(lines)

    def assert_books_closed(self, run_id: str) -> None:
        """Fail unless the ledger says that a run, its attempts and its leases have all ended."""
        run = self.ledger.run(run_id)
        attempts = self.ledger.attempts(run_id)
        leases = self.ledger.leases(run_id=run_id)
        assert run.state.is_final
        assert run.finished_at is not None
        assert [row.key for row in attempts if not row.state.is_final] == []
        assert [row.lease_id for row in leases if row.state.is_active] == []
        assert [row.lease_id for row in leases if row.ended_at is None or not row.why_ended] == []

    def stop(self) -> None:
        """End Airflow; fail if a process is left a minute later, or has imported from `here`."""
        self.go_down()
        with self.settings():
            running = self.ledger.runs(states=(StepState.RUNNING,))
            for record in running:  # of tests that have failed
                end_run(open_run(record.run_id), StepState.CANCELLED)
        try:
            wait_until(lambda: not started_by("", self.home), 60.0, "all processes to end")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{describe(started_by('', self.home))}") from late
        assert self.here.imported == set()


def make_home(home: Path) -> Path:
    """A home of headrace with the digits, and with the recipes and sites named above."""
    from headrace.examples.digits import export_digits

    export_digits(home / "examples" / "digits")
    for folder in ("sites", "recipes"):
        (home / folder).mkdir()
    for name, max_leases in ((SITE, 8), (NARROW_SITE, NARROW_LEASES), (EC2_SITE, 1)):
        site = _SITE_FILE.format(name=name, home=home, code=_CODE, max_leases=max_leases)
        (home / "sites" / f"{name}.yaml").write_text(site)
    for recipe in _recipes(home):
        (home / "recipes" / f"{recipe['name']}.yaml").write_text(yaml.safe_dump(recipe))
    return home


def write_ec2_site(home: Path, ec2: Mapping[str, object]) -> None:
    """Have site `aws` get a pool and a gang, of one node each, from EC2.

    Args:
        home: Home of the service.
        ec2: How instances are got.
    """
    file = home / "sites" / f"{EC2_SITE}.yaml"
    site = yaml.safe_load(file.read_text())
    for role, types in (("cpu", ["m5.large"]), ("gpu", ["g5.xlarge", "g4dn.xlarge"])):
        site["roles"][role] |= {
            "backend": "ec2",
            "nodes": 1,
            "ranks_per_node": 1,
            "batch": {"interface": "lo", "poll": 0.5},
            "ec2": {**ec2, "instance_types": types},
        }
    file.write_text(yaml.safe_dump(site))


def _recipes(home: Path) -> tuple[dict[str, Any], ...]:
    digits = yaml.safe_load((BUILT_IN / "recipes" / "digits.yaml").read_text())
    digits["trainer"] |= {"max_epochs": 1, "checkpoint_every_steps": 5}
    train = digits.get("train") or {}
    model = {"_target_": "held_digits.HeldDigits", "folder": str(home / "held")}
    held = {
        "name": "held",
        "code": [str(_CODE)],
        "pack_role": "gpu",  # one lease
        "model": model,
        "evaluate": None,
    }
    arrivals = {"name": ARRIVALS, "dataset": digits["dataset"] | {"name": ARRIVALS}}
    called = [
        digits | held | {"name": name, "model": None, "train": train | {"function": function}}
        for name, function in (
            ("objective", {"_target_": "objectives.value"}),
            ("waiting", {"_target_": "objectives.held"}),
            (OWN_DATA, {"_target_": "objectives.value", "x": 3}),
        )
    ]
    called[-1]["dataset"] = None
    return digits | held, digits | arrivals | {"evaluate": None}, *called


_UP = pytest.StashKey[ExitStack]()
"""Ends the Airflow of the session; harmless when it has ended."""


@contextmanager
def _up(home: Path) -> Iterator[AirflowService]:
    will = last_will(_DOWN, {**os.environ, "HEADRACE_HOME": str(home)})
    with mail_server() as (connection, mails), will:
        service = AirflowService(home, connection, mails)
        yield service
    service.stop()


@pytest.fixture(scope="session")
def airflow_service(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[AirflowService]:
    """One Airflow for the whole session; started at first use, ended with all it started."""
    home = make_home(tmp_path_factory.mktemp("airflow-service"))
    with ExitStack() as up:
        request.config.stash[_UP] = up
        yield up.enter_context(_up(home))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End Airflow, which takes memory and some of a core, after the last test that shares it.

    Only one of several test processes does so: it gets all of these tests in a row.
    """
    is_one_of_several = hasattr(item.config, "workerinput")
    if is_one_of_several and nextitem is not None and not shares_airflow(nextitem.nodeid):
        item.config.stash.get(_UP, ExitStack()).close()
