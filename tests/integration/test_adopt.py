"""`headrace lease adopt` on a real Slurm, and on simulated EC2, after the ledger was lost."""

from __future__ import annotations

import math
import sqlite3
import tarfile
from pathlib import Path

import pytest
import yaml

from headrace.batch.queue_state import intent_of
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_machines import job_spec
from headrace.clusters.lease_records import job_name
from headrace.execution.decisions import RunningAttempt
from headrace.execution.step_attempts import collect
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.leases import run_leases
from headrace.ledger.ledger import open_ledger
from headrace.recipe.load import BUILT_IN
from headrace.runs.runs import Run
from headrace.states import LeaseState, StepState
from headrace.steps import mailbox
from support.attempts import start_step
from support.command_line import headrace
from support.ec2_sim import Ec2Sim, name_of
from support.leases import START_TIMEOUT_S, lease_spec, wait_for_state
from support.runs import make_run
from support.slurm_dev import DevSlurm
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]


@pytest.fixture
def home(headrace_home: Path, digits_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Site `quick`, and a ledger that can be lost."""
    monkeypatch.setenv("HEADRACE_DIGITS", str(digits_folder))
    site = (BUILT_IN / "sites" / "slurm-dev.yaml").read_text()
    site = site.replace("poll: 2s", "poll: 0.2s").replace("name: slurm-dev", "name: quick")
    site = site.replace("kind: pool\n    nodes: 4", "kind: gang\n    nodes: 1")
    (headrace_home / "sites").mkdir()
    (headrace_home / "sites" / "quick.yaml").write_text(site)
    monkeypatch.setenv("HEADRACE_LEDGER", f"sqlite:///{headrace_home}/ledger.db")
    return headrace_home


def test_a_running_step_is_found_again_and_its_lease_closed(
    home: Path, slurm: DevSlurm, monkeypatch: pytest.MonkeyPatch, no_leftover_processes: None
):
    """pains 6, 7: what the job does is known from its folder, whatever database is lost."""
    run = _run()
    started = start_step(run, "pack")
    assert isinstance(started, RunningAttempt)
    folder = run.lease_folder(started.lease.lease_id)
    wait_for_state(folder, LeaseState.READY, START_TIMEOUT_S)
    _lose_the_ledger(home, monkeypatch)

    (job_id,) = slurm.queue()
    told = _headrace("lease", "adopt", "--site", "quick")
    assert f"lease {started.lease.lease_id}: ready, Slurm job {job_id}, run {run.run_id}" in told
    assert "Nothing to adopt" in _headrace("lease", "adopt", "--site", "quick")
    (record,) = open_ledger().leases(run_id=run.run_id)
    assert (record.state, record.job_ids) == (LeaseState.READY, (job_id,))

    again = _run()  # the same key, as of a DAG run triggered anew under its id
    assert again.run_id == run.run_id
    assert run_leases.acquire(again, record.role) == started.lease.lease_id
    step = StepFolder(Path(started.folder.path))
    wait_until(lambda: mailbox.outcome(step), 120, "the step to end")
    attached = start_step(again, "pack")
    result = collect(again, attached) if isinstance(attached, RunningAttempt) else attached
    assert result.state is StepState.SUCCEEDED
    assert len(open_ledger().attempts(run.run_id)) == 1

    assert "is closed: enough" in _headrace(
        "lease", "close", started.lease.lease_id, "--site", "quick", "--reason", "enough"
    )
    assert slurm.queue() == []


def test_a_job_that_was_submitted_and_not_recorded_is_found_by_its_name(
    home: Path, slurm: DevSlurm, monkeypatch: pytest.MonkeyPatch
):
    """pains 6: the submitter died, and the ledger is lost as well."""
    run = _run()
    role = run.site.roles["cpu"]
    folder = LeaseFolder(run.lease_folder(f"{run.run_id}-cpu-1").path)
    asked = lease_spec(folder, role).model_copy(update={"run_id": run.run_id, "role_name": "cpu"})
    write_record(folder.spec, asked)
    job = job_spec(folder, asked).model_copy(update={"command": ("sleep", "60")})
    write_text(intent_of(folder.job), job.name)
    job_id = slurm.system.submit(job)
    _lose_the_ledger(home, monkeypatch)
    assert f"starting, Slurm job {job_id}" in _headrace("lease", "adopt", "--site", "quick")
    assert LeaseFiles.read(folder).state(0.0) is LeaseState.STARTING
    assert job_name(folder) == job.name
    _headrace("lease", "close", folder.lease_id, "--site", "quick", "--grace", "0")
    assert slurm.queue() == []


def test_instances_are_found_again_and_none_is_started_twice(
    home: Path, ec2_sim: Ec2Sim, monkeypatch: pytest.MonkeyPatch, no_leftover_processes: None
):
    """pains 6, 22: once while it boots, and once while its step runs."""
    file = home / "sites" / "quick.yaml"
    site = yaml.safe_load(file.read_text())
    for role in site["roles"].values():
        batch = {"interface": "lo", "poll": 0.2}
        role |= {"backend": "ec2", "batch": batch, "ec2": ec2_sim.values(), "host": "control"}
    file.write_text(yaml.safe_dump(site))
    ec2_sim.boot_s = math.inf
    run = _run()
    started = start_step(run, "pack")
    assert isinstance(started, RunningAttempt)
    (job,) = {name_of(each) for each in ec2_sim.alive()}
    for stage in ("starting", "ready"):
        _lose_the_ledger(home, monkeypatch, f"{stage}.db")
        told = _headrace("lease", "adopt", "--site", "quick")
        assert f"lease {started.lease.lease_id}: {stage}, EC2 job {job}, run {run.run_id}" in told
        ec2_sim.boot_s = 0.0
        folder = run.lease_folder(started.lease.lease_id)
        wait_for_state(folder, LeaseState.READY, START_TIMEOUT_S)
    again = _run()
    assert again.run_id == run.run_id
    step = StepFolder(Path(started.folder.path))
    wait_until(lambda: mailbox.outcome(step), 120, "the step to end")
    attached = start_step(again, "pack")
    result = collect(again, attached) if isinstance(attached, RunningAttempt) else attached
    assert result.state is StepState.SUCCEEDED
    assert len(ec2_sim.requests) == len(ec2_sim.instances) == 1
    run_leases.release(again, "cpu", "enough")
    assert ec2_sim.alive() == []
    assert open_ledger().active_leases() == ()


def _run() -> Run:
    owner = "airflow:headrace_pack:manual-1"
    return make_run(site="quick", key="headrace_pack/manual-1", owner=owner, kind="pack")


def _lose_the_ledger(home: Path, monkeypatch: pytest.MonkeyPatch, new: str = "new.db") -> None:
    for file in home.glob("ledger.db*"):
        file.unlink()
    monkeypatch.setenv("HEADRACE_LEDGER", f"sqlite:///{home}/{new}")


def _headrace(*arguments: str) -> str:
    result = headrace(*arguments, columns=250)
    assert result.exit_code == 0, result.output
    return result.output


HOMES = sorted((Path(__file__).parent / "older_homes").glob("*.tar.gz"))
MADE_IN = "/srv/headrace"


@pytest.fixture(params=HOMES, ids=lambda file: file.name)
def earlier_home(request: pytest.FixtureRequest, headrace_home: Path) -> Path:
    """A earlier_home with one run of 150 digits, its leases, its dataset and its ledger."""
    with tarfile.open(request.param) as archive:
        # Python 3.11.2 of Debian 12 has no filters
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(headrace_home, **safely)
    for file in headrace_home.rglob("*"):
        if file.suffix in (".json", ".sql") and file.name != "manifest.json":  # it has a digest
            file.write_text(file.read_text().replace(MADE_IN, str(headrace_home)))
    with sqlite3.connect(headrace_home / "ledger.db") as ledger:
        ledger.executescript((headrace_home / "ledger.sql").read_text())
    return headrace_home


def told(*arguments: str) -> str:
    done = headrace(*arguments, columns=200)
    assert done.exit_code == 0, done.output
    return done.output


def test_an_older_home_opens(earlier_home: Path):
    (run,) = (path.name for path in (earlier_home / "runs").glob("digits-*"))
    (dataset,) = (earlier_home / "datasets").iterdir()
    assert run in told("runs")
    shown = told("status", run)
    assert shown.count("succeeded") == 5
    assert "accuracy 0.1333" in shown
    assert "fit" in told("logs", run, "train").lower()
    assert "150" in told("inspect", str(dataset))
    assert "intact: 3 shards, 150 samples" in told("verify", str(dataset))
    assert told("lease", "list", "--all").count(run) == 2
    assert told("resume", run)
