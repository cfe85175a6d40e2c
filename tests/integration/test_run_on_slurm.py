"""The main job on a real Slurm: as on the laptop, and again after its job was cancelled."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest
import slurm_dev
import yaml
from slurm_dev_daemons import Daemons
from slurm_dev_files import Shape

from headrace.batch.slurm_queues import parse_limit
from headrace.clusters import lease_client
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.pages import pages_of
from headrace.execution.execute import execute, previews
from headrace.files.layout import SiteFolder
from headrace.leases import run_leases
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.processes.identity import die_with_parent
from headrace.recipe.load import BUILT_IN, load_recipe, load_site
from headrace.recipe.site import Role
from headrace.runs.costs import run_cost
from headrace.runs.runs import Run
from headrace.states import FailureClass, LeaseState, StepState
from headrace.status.lease import lease_view as view
from headrace_foresight.lifetime import DEFAULT_S
from support.documents import NEEDS_SLURM, Reader, blocks
from support.factories import write_recipe, write_yaml
from support.leases import START_TIMEOUT_S, lease_spec, opened, wait_for_state
from support.runs import make_run
from support.secret_sweep import check_only_in, digest_of, files_with, told_by
from support.slurm_dev import DevSlurm
from support.training import CODE, weights_here
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

HOLD_AT = 12
CHECKPOINT_EVERY = 5
MODULE = """\
#%Module1.0
setenv HELD_MODULE loaded
prepend-path PATH /opt/held/bin
prepend-path LD_LIBRARY_PATH /opt/held/lib
"""
HAS_MODULES = any(Path("/usr/share", each).exists() for each in ("lmod/lmod", "modules/init"))
SECRETS = (f"first-{uuid.uuid4().hex}", f"second-{uuid.uuid4().hex}")

_GANG: dict[str, Any] = {
    "backend": "slurm",
    "kind": "gang",
    "nodes": 2,
    "lifetime": 600,
    "batch": {"interface": "lo", "poll": 0.2, "gpus_per_node": 2},
}


@pytest.fixture
def home(headrace_home: Path, digits_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recipe `held`, and site `quick`: four ranks on two nodes of Slurm."""
    monkeypatch.setenv("HEADRACE_DIGITS", str(digits_folder))
    model = {"_target_": "held_digits.HeldDigits", "folder": str(headrace_home / "held")}
    write_recipe(
        headrace_home, "held", code=[str(CODE)], model=model | {"hold_at": HOLD_AT},
        trainer={"max_epochs": 1, "checkpoint_every_steps": CHECKPOINT_EVERY},
    )  # fmt: skip
    (headrace_home / "modules" / "held").mkdir(parents=True)
    (headrace_home / "modules" / "held" / "1").write_text(MODULE)
    use = f"module use {headrace_home}/modules"
    prologue = [use, "module load held/1"] if HAS_MODULES else []
    allowed = f"allowed_code: [{CODE}]\nallowed_outputs: [{headrace_home}/held]"
    allowed += "\nsecrets: {TRACKER_KEY: env:HEADRACE_TEST_TRACKER}"
    monkeypatch.setenv("HEADRACE_TEST_TRACKER", SECRETS[0])
    slurm_dev = (BUILT_IN / "sites" / "slurm-dev.yaml").read_text()
    for of_all, of_this in (
        ("poll: 2s", f"poll: 0.2s\n      prologue: {json.dumps(prologue)}"),
        ("lifetime: 1h", "lifetime: auto"),
        ("nodes: 4", "nodes: 2"),
        ("ranks_per_node: 2", "ranks_per_node: 2\n    price: {usd_per_gpu_hour: 1800}"),
    ):
        slurm_dev = slurm_dev.replace(of_all, of_this)
    (headrace_home / "sites").mkdir()
    (headrace_home / "sites" / "quick.yaml").write_text(
        slurm_dev.replace("name: slurm-dev", f"name: quick\n{allowed}")
    )
    return headrace_home


def test_same_weights_as_on_one_machine_though_slurms_job_was_cancelled_in_mid_epoch(
    home: Path, slurm: DevSlurm, no_leftover_processes: None, monkeypatch: pytest.MonkeyPatch
):
    """pains 15, 31, 32: one gang, its end told by Slurm, tried again by the control side.

    pains 37: both gangs cost what the site says, and the wait in the queue nothing. A secret of the
    site is in one file of each lease as long as that lives, and nowhere else.
    """
    places = (home, slurm.shape.folder, Path(tempfile.gettempdir(), "dask-scratch-space"))
    (home / "held").mkdir()
    (home / "held" / "hold").touch()
    run = _run("quick")
    cancelled: list[str] = []

    def cancel_when_held() -> None:
        if not cancelled and list((home / "held").glob("held-*")):
            pages = pages_of(run.lease_folder(f"{run.run_id}-gpu-1"))  # on the gang's first node
            with urllib.request.urlopen(f"{pages.url}status", context=pages.key) as shown:
                assert shown.status == 200
            (job_id,) = slurm.queue()
            check_only_in(SECRETS[0], run.lease_folder(f"{run.run_id}-gpu-1"), *places)
            assert SECRETS[0] not in told_by(slurm, job_id)
            assert (home / "held" / "tracker").read_text() == digest_of(SECRETS[0])
            monkeypatch.setenv("HEADRACE_TEST_TRACKER", SECRETS[1])  # from the next lease on
            cancelled.extend(slurm.queue())
            slurm.run("scancel", *cancelled)
            wait_until(lambda: slurm.queue() == [], 90, "the job to end", poll_s=0.5)
            (home / "held" / "hold").unlink()

    assert execute(run, cancel_when_held) is None
    assert slurm.queue() == []
    first, second = _attempts(run, "train")
    (job_id,) = cancelled
    assert (first.state, first.failure_class) == (StepState.LOST, FailureClass.LOST)
    assert f"Slurm job {job_id} ended: cancelled" in str(first.message)
    assert second.outputs["world_size"] == 4
    assert (home / "held" / "tracker").read_text() == digest_of(SECRETS[1])
    modules = (home / "held" / "modules").read_text()  # before this machine trains, too
    assert [files_with(each, *places) for each in SECRETS] == [[], []]
    begun = (home / "held" / "attempts").read_text().splitlines()
    steps = [int(line.split()[1]) for line in begun]
    assert steps == [0, HOLD_AT - HOLD_AT % CHECKPOINT_EVERY]  # from the last checkpoint
    (packed,) = _attempts(run, "pack")
    dataset = packed.outputs["dataset"]
    wanted = weights_here(home / "whole", run.recipe, dataset, ranks=4)
    assert second.outputs["weights_xxh3"] == wanted
    (evaluated,) = _attempts(run, "evaluate")
    assert evaluated.state is StepState.SUCCEEDED
    rows = open_ledger().leases(run_id=run.run_id)
    assert not any(lease.state.is_active for lease in rows)
    assert {(lease.role, len(lease.job_ids)) for lease in rows} == {("cpu", 0), ("gpu", 1)}
    (pool,) = [run.lease_folder(lease.lease_id) for lease in rows if lease.role == "cpu"]
    assert len(list(pool.jobs.glob("*.log"))) == 2
    machines = open_ledger().machines(run_id=run.run_id)
    priced = [each for each in machines if each.usd_per_hour is not None]
    assert {each.usd_per_hour for each in priced} == {3600.0}  # a dollar a second
    assert len(priced) == 2 * 2  # a gang of two nodes, and after it another one
    assert len(machines) == 2 + len(priced)
    cost = run_cost(run.run_id)
    assert cost.usd == pytest.approx(sum(each.billed_s for each in priced))
    took = {each.name: each for each in open_ledger().usage_sums("role", run_id=run.run_id)}
    assert took["gpu"].usd == pytest.approx(cost.usd)  # of attempts and idle nodes together
    assert took["gpu"].failed_s > 0
    assert took["gpu"].node_s > took["gpu"].failed_s + took["gpu"].idle_s
    assert took["cpu"].unpriced == took["cpu"].attempts + 2
    _check_that_the_next_lease_is_shorter(run, slurm)
    if not HAS_MODULES:
        pytest.skip("install the Debian package lmod or environment-modules: all else holds")
    variable, path, libraries = modules.splitlines()
    assert variable == "loaded"
    assert "/opt/held/bin" in path.split(":")
    assert "/opt/held/lib" in libraries.split(":")


def test_the_tutorial_can_be_followed(
    tmp_path: Path, slurm: DevSlurm, monkeypatch: pytest.MonkeyPatch, no_leftover_processes: None
):
    page = Path(__file__).parents[2] / "docs" / "tutorials" / "first-run-on-slurm.md"
    assert NEEDS_SLURM in page.read_text()
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    reader = Reader(home=tmp_path)
    for block in blocks(page):
        reader.follow(block)
    wait_until(lambda: slurm.queue() == [], 60, "the jobs to end", poll_s=0.5)


def _check_that_the_next_lease_is_shorter(earlier: Run, slurm: DevSlurm) -> None:
    """What `headrace plan` tells of the time limit, and what Slurm then gets."""
    first = lease_client.spec(earlier.lease_folder(f"{earlier.run_id}-gpu-1"))
    assert first.role.lifetime_s == DEFAULT_S
    assert first.walltime.why.startswith("no earlier run shows how long stage and train")
    planned = {each.role: each for each in previews(load_recipe("held"), load_site("quick"))}
    chosen = planned["gpu"].walltime
    assert chosen.seconds < DEFAULT_S
    assert chosen.most_s == 48 * 3600
    assert "with a probability of 95%, plus 5 minutes" in planned["gpu"].time
    run = _run("quick")
    lease_id = run_leases.acquire(run, "gpu")
    try:
        (job_id,) = slurm.queue()
        limit = slurm.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%l").strip()
        assert parse_limit(limit) == chosen.seconds
        assert lease_client.spec(run.lease_folder(lease_id)).walltime == chosen
    finally:
        run_leases.release(run, "gpu", "the test has seen enough")


@pytest.mark.parametrize("kind", ["gang", "pool"])
def test_a_job_that_can_never_start_is_not_waited_for(home: Path, slurm: DevSlurm, kind: str):
    run = _run(_changed(home, kind=kind, lifetime="99h"))
    result = execute(run, lambda: None)
    assert result.failure.failure_class is FailureClass.USER_ERROR
    assert "can never start: PartitionTimeLimit" in result.failure.message
    assert len(_attempts(run, "pack")) == 1
    assert slurm.queue() == []


def test_a_lease_waits_in_the_queue_and_leaves_it(home: Path, slurm: DevSlurm):
    """pains 22: what waits is not lost, and whoever gives up leaves no job behind."""
    run = _run("quick")
    role = run.site.roles["gpu"].model_copy(update={"nodes": 4, "lifetime": 600.0})
    hold = ("--exclusive", "--time=5", "--output=/dev/null", "--wrap=sleep 300")
    blocker = slurm.run("sbatch", "--parsable", *hold).strip()
    folder = SiteFolder(home).lease("waits-1")
    spec = lease_spec(folder, role)
    try:
        lease_client.start(folder, spec)
        lease_client.start(folder, spec)  # a second time changes nothing
        assert len(slurm.queue()) == 2
        wait_for_state(folder, LeaseState.STARTING, 1)
        assert LeaseFiles.read(folder).state(lost_after_s=0) is LeaseState.STARTING
        assert "is pending" in LeaseFiles.read(folder).wait().why
        assert "is pending" in view(folder).waits_for
        now = time.time()
        wait_until(lambda: view(folder).expected_start, 120, "Slurm to tell the start", poll_s=1)
        assert now < view(folder).expected_start < now + 600
        lease_client.end(folder, reason="changed our minds")
        assert slurm.queue() == [blocker]
        assert LeaseFiles.read(folder).state(0) is LeaseState.CLOSED
    finally:
        slurm.run("scancel", blocker)


def test_a_gang_is_all_or_nothing(tmp_path: Path, slurm: DevSlurm):
    """pains 15: the host decides, and its reason is told, not that of a node which gave up."""
    role = Role(**_GANG, start_timeout=0.05)
    folder = SiteFolder(tmp_path).lease("none-1")
    lease_client.start(folder, lease_spec(folder, role))
    wait_for_state(folder, LeaseState.FAILED, START_TIMEOUT_S)
    assert "of 2 nodes joined within 0.05 s" in LeaseFiles.read(folder).why_ended
    lease_client.end(folder)


def test_kill_of_the_host_ends_the_job_and_is_told(tmp_path: Path, slurm: DevSlurm):
    """pains 22: no node is held by what nobody serves."""
    folder = opened(tmp_path, Role(**_GANG))
    info = lease_client.info(folder)
    assert info.scheduler_address.startswith("tls://")
    assert folder.tls.stat().st_mode & 0o077 == 0
    with Fleet.open(folder) as fleet:
        names = {fleet.call(node, os.getenv, "SLURMD_NODENAME") for node in fleet.nodes(2, 1)}
        assert names == {"node1", "node2"}
        gpus = {fleet.call(node, os.getenv, "CUDA_VISIBLE_DEVICES") for node in fleet.nodes(2, 1)}
        assert gpus == {"0,1"}
    psutil.Process(info.host.pid).kill()
    wait_for_state(folder, LeaseState.LOST, 90)
    wait_until(lambda: slurm.queue() == [], 120, "the job to end", poll_s=0.3)
    cause = lease_client.cause(folder)
    assert f"Slurm job {info.job_ids[0]} ended: " in cause.why
    assert cause.failure_class.is_retried
    lease_client.end(folder)
    assert LeaseFiles.read(folder).state(0) is LeaseState.LOST


def test_the_small_slurm_is_brought_up_once_and_keeps_to_loopback(slurm: DevSlurm):
    before = slurm.daemons.all
    assert slurm_dev.up(slurm.daemons).config == slurm.config
    assert slurm.daemons.all == before
    assert all(each.is_alive for each in before)
    pids = {each.pid for each in before}
    listening = [each for each in psutil.net_connections("tcp") if each.pid in pids]
    served = {each.laddr.ip for each in listening if each.status == psutil.CONN_LISTEN}
    assert served == {"127.0.0.1"}


def _run(site: str, *overrides: str) -> Run:
    return make_run(recipe="held", site=site, overrides=overrides)


def _changed(home: Path, **changes: Any) -> str:
    """Site `quick` whose first role is asked for otherwise."""
    site = yaml.safe_load((home / "sites" / "quick.yaml").read_text())
    site["roles"]["cpu"] |= changes
    write_yaml(home / "sites" / "changed.yaml", site | {"name": "changed"})
    return "changed"


def _attempts(run: Run, step: str) -> list[AttemptRecord]:
    return [each for each in open_ledger().attempts(run.run_id) if each.step == step]


@pytest.mark.skipif(bool(slurm_dev.why_not()), reason=slurm_dev.why_not() or "it can run")
def test_its_database_leaves_those_of_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    table_of_another = tmp_path / "#sql-temptable-1-1-1.MAD"
    table_of_another.touch()
    with tempfile.TemporaryDirectory(prefix="headrace-db-", dir="/tmp") as folder:
        daemons = Daemons(Path(folder), before=lambda: die_with_parent(signal.SIGKILL))
        try:
            slurm_dev._start_database(Shape(folder=Path(folder), host="localhost", port=0), daemons)
        finally:
            daemons.stop()
    assert table_of_another.exists()
