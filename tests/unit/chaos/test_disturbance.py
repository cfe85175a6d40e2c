from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from chaos.campaign.disturbance import Disturbance
from chaos.campaign.processes import Processes
from chaos.campaign.trials import Trial
from headrace.files.atomic import write_record
from headrace.files.layout import SiteFolder
from headrace.states import StepState
from headrace.steps.mailbox import StepResult, StepSpec
from support.sleepers import sleeper
from support.waiting import wait_until

HALT_S = 2.0


def disturbance(home: Path, *, spans: dict[str, float] | None = None, **changes: object):
    values: dict[str, object] = {
        "seed": 1,
        "number": 0,
        "phase": "pack",
        "role": "host",
        "moment": 0.5,
        "which": 0.99,
        "signal": "kill -9",
        "halt_s": 0.0,
    }
    trial = Trial.model_validate(values | changes)
    return Disturbance(trial, spans or {}, home, Processes(home))


def ticks(one: Disturbance, until: str = "hit") -> object:
    """Tick until it has hit, or is over."""

    def ticked() -> object:
        one.tick()
        return one.hit if until == "hit" else one.is_over

    return wait_until(ticked, 30, until)


def end_packing(home: Path) -> None:
    """Files of a lease in which packing has succeeded."""
    step = SiteFolder(home).lease("one").step(1)
    write_record(
        step.spec,
        StepSpec(key="k", kind="pack", run_id="r", name="pack", attempt=1, run_folder="/r"),
    )
    write_record(
        step.result, StepResult(state=StepState.SUCCEEDED, started_at=0.0, finished_at=1.0)
    )


def test_the_process_of_the_role_is_killed(tmp_path: Path):
    with (
        sleeper(tmp_path, "headrace.clusters.local") as guard,
        sleeper(tmp_path, "headrace.clusters.host") as host,
    ):
        one = disturbance(tmp_path)
        ticks(one)
        assert host.wait(30) == -9
        assert guard.poll() is None
        assert one.is_over
        assert one.hit is not None
        assert (one.hit.phase, one.hit.role) == ("pack", "host")
        assert f"host {host.pid} " in one.hit.process


def test_a_halted_process_goes_on_after_its_time(tmp_path: Path):
    with sleeper(tmp_path, "headrace.clusters.host") as host:
        one = disturbance(tmp_path, signal="stop", halt_s=HALT_S)
        ticks(one)
        began = time.monotonic()
        process = psutil.Process(host.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, 30, "the process to halt")
        assert not one.is_over
        ticks(one, "over")
        assert time.monotonic() - began > HALT_S / 2
        wait_until(lambda: process.status() != psutil.STATUS_STOPPED, 30, "the process to go on")


def test_it_waits_for_its_phase(tmp_path: Path):
    with sleeper(tmp_path, "headrace.clusters.host") as host:
        one = disturbance(tmp_path, phase="stage")
        for _ in range(3):
            one.tick()
        assert one.hit is None
        end_packing(tmp_path)
        ticks(one)
        assert one.hit is not None
        assert one.hit.phase == "stage"
        assert host.wait(30) == -9


def test_it_waits_for_a_part_of_what_such_a_process_lived(tmp_path: Path):
    with sleeper(tmp_path, "headrace.clusters.host"):
        one = disturbance(tmp_path, spans={"pack/host": 4.0})
        ticks(one)
        assert one.hit is not None
        assert one.hit.after_s >= 2.0


def test_a_process_that_ended_too_early_is_replaced_by_another_one(tmp_path: Path):
    with sleeper(tmp_path, "headrace.clusters.local") as guard:
        with sleeper(tmp_path, "headrace.clusters.host"):
            one = disturbance(tmp_path, spans={"pack/host": 2.0})
            processes = Processes(tmp_path)
            wait_until(lambda: len(processes.living()) == 2, 30, "both to be there")
            one.tick()
        ticks(one)
        assert one.hit is not None
        assert one.hit.role == "guard"
        assert guard.wait(30) == -9


@pytest.mark.parametrize("signal", ["kill -9", "stop"])
def test_nothing_is_hit_when_nothing_is_there(tmp_path: Path, signal: str):
    one = disturbance(tmp_path, signal=signal, halt_s=1.0)
    one.tick()
    one.let_go()
    assert one.hit is None
    assert one.is_over
