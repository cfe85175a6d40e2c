"""Gangs on a real Slurm that are disturbed at a step where training waits for it.

Every time the run succeeds, with the weights of one that nobody disturbed, to the last bit; no job
is left in the queue, and the ledger says what ended each attempt.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from headrace.checkpoints import files as checkpoints
from headrace.clusters.lease_records import LeaseSpec
from headrace.leases import run_leases
from headrace.recipe.load import load_recipe
from headrace.runs.runs import Run
from headrace.states import FailureClass, StepState
from support.disturbed import LONG_S
from support.paced_run import PacedRun, Waiting, home_for_paced_runs, until
from support.slurm_dev import LEAVING_S, DevSlurm
from support.training import CODE, weights_here
from support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

_CONTROLLER_DOWN_S = 9.0


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory, digits_folder: Path) -> Path:
    """A home for all runs of this file: the dataset is packed once."""
    home = tmp_path_factory.mktemp("paced")
    home_for_paced_runs(home, digits_folder, CODE)
    return home


@pytest.fixture
def home(shared_home: Path, slurm: DevSlurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home, named by `HEADRACE_HOME`; nodes and daemons of Slurm are whole again afterwards."""
    monkeypatch.setenv("HEADRACE_HOME", str(shared_home))
    yield shared_home
    slurm.heal()


@functools.cache
def undisturbed_weights(home: Path, dataset: str) -> str:
    """Hash of the weights of a training that nobody disturbs, on one machine."""
    return weights_here(home / "whole", load_recipe("paced"), dataset, ranks=2)


def assert_like_undisturbed(paced: PacedRun, home: Path, slurm: DevSlurm) -> None:
    """What holds after every disturbance."""
    wait_until(lambda: not slurm.queue(), LEAVING_S, "an empty queue", poll_s=0.5)
    paced.records.assert_settled(paced.run.run_id)
    (packed,) = paced.records.attempts(paced.run.run_id, "pack")
    assert paced.weights() == undisturbed_weights(home, packed.outputs["dataset"])


_LOST_AFTER_S = 8.0
_STOPPED_S = 5.0


def test_host_ranks_worker_driver_slurms_daemons_and_nodes_go_away_one_after_the_other(
    home: Path, slurm: DevSlurm, no_leftover_processes: None
):
    """pains 31, 32, 34: the rank and the worker are made good in the same attempt.

    Each time training had come further, so that none of these counts: not one may.

    Silence counts from the host's beginning: a long wait in the queue is none, and a host that is
    stopped for a moment keeps its lease. A controller that is down is no end; a node that is down
    ends the job.
    """
    _write_site(home, "impatient", limits={"heartbeat": 1, "lost_after": _LOST_AFTER_S})
    slurm.run("sbatch", "--job-name=blocker", "--output=/dev/null", "--exclusive", "--nodes=4",
              "--wrap=sleep 300")  # fmt: skip
    paced = PacedRun(home, "impatient", "retry.max_failures=1", "train.max_restarts=1")
    paced.tell("hold", 12)

    def disturb() -> Waiting:
        yield from until(lambda: paced.has_lease() and paced.lease().job.exists())
        yield from _pass(_LOST_AFTER_S + 3)
        stopping = threading.Thread(target=_stop_at_once, args=(paced,))
        stopping.start()
        slurm.run("scancel", "--name=blocker")
        yield from until(lambda: not stopping.is_alive())
        yield from _pass(_STOPPED_S)
        paced.host().resume()
        yield from paced.held_at(12)
        paced.kill_rank()
        yield from paced.begun_anew()
        yield from paced.held_at(18)
        paced.kill_worker()
        yield from paced.begun_anew()
        yield from paced.held_at(24)
        paced.kill_one("headrace.steps.run")
        yield from paced.begun_anew()
        yield from paced.held_at(30)
        slurm.daemons.kill("slurmctld")
        down_since = time.monotonic()
        yield from paced.held_at(36)  # it has not noticed
        yield from until(lambda: time.monotonic() - down_since > _CONTROLLER_DOWN_S)
        slurm.restart_controller()
        drained, _ = slurm.nodes_of(paced.job())
        slurm.set_node(drained, "drain")  # no new jobs: this one goes on
        yield from paced.held_at(42)
        paced.kill_host()
        yield from paced.begun_anew()
        yield from paced.held_at(48)
        nodes = slurm.nodes_of(paced.job())
        assert drained not in nodes
        slurm.set_node(nodes[1], "down")
        yield from paced.begun_anew()
        yield from paced.held_at(54)
        slurm.resume_nodes()
        slurm.daemons.kill(f"slurmd-{slurm.nodes_of(paced.job())[1]}")
        yield from paced.begun_anew()
        paced.tell("hold", None)

    paced.go(disturb())
    assert_like_undisturbed(paced, home, slurm)
    driver, host, *without_node, whole = paced.attempts()
    assert (driver.state, host.state) == (StepState.LOST, StepState.LOST)
    assert len(paced.records.events(driver, "restart")) >= 2
    assert "signal 9" in driver.message
    for attempt in without_node:
        assert attempt.failure_class is FailureClass.INFRASTRUCTURE, attempt
        assert "node failed" in attempt.message
    assert driver.lease_id == host.lease_id
    assert len({each.lease_id for each in (host, *without_node, whole)}) == 4
    leases_of_run = paced.records.ledger.leases(run_id=paced.run.run_id)
    assert len(leases_of_run) == 4
    kept = next(row for row in leases_of_run if row.lease_id == host.lease_id)
    assert kept.ended_at is not None
    assert kept.ended_at - kept.created_at > _LOST_AFTER_S + _STOPPED_S


def _write_site(
    home: Path, name: str, limits: Mapping[str, float] | None = None, **changes: int
) -> None:
    """Site `quick` by another name, with other limits and a changed gang."""
    site = yaml.safe_load((home / "sites" / "quick.yaml").read_text()) | {"name": name}
    site["limits"] |= limits or {}
    site["roles"]["gpu"] |= changes
    (home / "sites" / f"{name}.yaml").write_text(yaml.safe_dump(site))


def _stop_at_once(paced: PacedRun) -> None:
    """Stop the host as soon as it has reported."""
    wait_until(paced.lease().host.exists, LONG_S, "the host to report", poll_s=0.002)
    paced.host().suspend()


def _pass(seconds: float) -> Waiting:
    since = time.monotonic()
    yield from until(lambda: time.monotonic() - since > seconds)


def test_preempted_out_of_memory_and_out_of_time(
    home: Path,
    slurm: DevSlurm,
    no_leftover_processes: None,
    monkeypatch: pytest.MonkeyPatch,
):
    """pains 18, 31, 32, peers 41: each cause is told apart; the third lease gets one minute."""
    monkeypatch.setattr(run_leases, "_spec", _third_is_short(run_leases._spec))
    _write_site(home, "alone", nodes=1, ranks_per_node=2)
    paced = PacedRun(home, "alone")

    def disturb() -> Waiting:
        yield from paced.held_at(12)
        command = ("sbatch", "--parsable", "--partition=urgent", "--nodes=4", "--exclusive")
        slurm.run(*command, "--output=/dev/null", "--wrap=sleep 2")
        yield from paced.begun_anew()
        yield from paced.held_at(22)
        paced.tell("eat", 5000)
        yield from paced.begun_anew()
        paced.tell("pause", 1.5)  # the 54 steps that are left would take longer than the minute
        paced.tell("hold", None)
        yield from until(lambda: len(paced.attempts()) > 3)
        paced.tell("pause", None)

    paced.go(disturb())
    assert_like_undisturbed(paced, home, slurm)
    preempted, out_of_memory, out_of_time, whole = paced.attempts()
    assert preempted.failure_class is FailureClass.PREEMPTED
    assert out_of_memory.failure_class is FailureClass.OUT_OF_MEMORY
    assert out_of_time.failure_class is FailureClass.TIMED_OUT
    resumed = paced.records.events(whole, "launch")[0]["resume"]
    assert checkpoints.step_of(Path(resumed)) == out_of_time.outputs["kept"]
    assert out_of_memory.outputs["kept"] == 20
    # on a crowded machine a minute may be over before the first step; then nothing is lost at least
    has_begun = "stopped after step" in out_of_time.message
    assert out_of_time.outputs["kept"] >= (21 if has_begun else 20)


def _third_is_short(spec: Callable[..., LeaseSpec]) -> Callable[..., LeaseSpec]:
    def short(run: Run, role: str, lease_id: str, asked: LeaseSpec | None = None) -> LeaseSpec:
        made = spec(run, role, lease_id, asked)
        if not lease_id.endswith("-3"):
            return made
        return made.model_copy(update={"role": made.role.model_copy(update={"lifetime": 60.0})})

    return short
