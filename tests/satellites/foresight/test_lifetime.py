"""The time limit of a lease: from the forecast of its steps, the run's folder and the queue."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clusters import lease_machines
from headrace.clusters.lease_records import FLOOR_S, HostRecord, LeaseSpec, PoolRecord, Walltime
from headrace.execution.decisions import End, Memory, Wait, decide
from headrace.execution.execute import previews
from headrace.execution.step_attempts import _can_grow, conclude, observe
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import LeaseFolder
from headrace.leases import run_leases as leases
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.load import load_recipe, load_site
from headrace.runs.planned_steps import step_of
from headrace.runs.prediction import PredictedPart
from headrace.runs.runs import Run
from headrace.states import FailureClass, StepState
from headrace.steps.mailbox import Failure, StepResult
from headrace.steps.retry_policy import PROGRESS, TOTAL
from headrace_foresight.lifetime import choose, lifetime, rounded_up, start_s
from support.command_line import headrace
from support.factories import built_in, demo_info, write_site
from support.ledger_rows import attempt_row
from support.past_runs import step_ended
from support.runs import attempt_row_of, lease_on_disk, make_run


@pytest.fixture(autouse=True)
def sites(headrace_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Site `chosen`, whose queue gives a job two days; there are no books."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    answers(programs, "sinfo", "echo 'main*|2-00:00:00'")
    answers(programs, "sacctmgr", "exit 1")
    roles = built_in("sites", "slurm-dev")["roles"]
    for role in roles.values():
        role["lifetime"] = "auto"
    write_site(headrace_home, "chosen", like="slurm-dev", roles=roles)
    return programs


def answers(programs: Path, name: str, line: str) -> None:
    (programs / name).write_text(f"#!/bin/bash\n{line}\n")
    (programs / name).chmod(0o755)


def earlier_run() -> Run:
    """One that packed for 200 s, 150 s of them without a node, and trained ten steps in 1000 s."""
    run = make_run(site="chosen")
    pool, gang = lease_on_disk(run, "cpu"), lease_on_disk(run, "gpu")
    step_ended(run, "pack", pool, 200.0, outputs={"reused": False})
    write_record(run.lease_folder(pool).pool, PoolRecord(first_node_at=1150.0))
    step_ended(run, "stage", gang, 100.0, outputs={"copied_bytes": 5})
    epochs = run.recipe.trainer.max_epochs
    step_ended(run, "train", gang, 1000.0, outputs={"steps": 10 * epochs})
    step_ended(run, "evaluate", gang, 60.0)
    folder, host = run.lease_folder(gang), ProcessIdentity.of()
    write_record(folder.host, HostRecord(process=host, started_at=100.0))
    info = demo_info(gang, backend="slurm", host=host, dashboard_url="", nodes=2, ready_at=140.0)
    write_record(folder.info, info)
    return run


def choice(run: Run, role: str = "gpu") -> Walltime:
    found = lifetime(run.recipe, run.site, role, "train", run)
    assert found is not None
    return found


def test_without_history_an_hour_is_taken_and_said() -> None:
    run = make_run(site="chosen")
    found = choice(run)
    assert (found.seconds, found.most_s) == (3600.0, 2 * 86400.0)
    assert found.why.startswith("no earlier run shows how long stage and train and evaluate will")
    plain = make_run()
    assert (
        lifetime(plain.recipe, plain.site, "gpu", "train") is None
    )  # the laptop's role has a time


def test_a_lease_gets_the_sum_of_its_steps_the_start_and_a_margin() -> None:
    """pains 22: no longer than needed, so that it fits into a gap of the queue."""
    earlier_run()
    found = choice(make_run(site="chosen"))
    assert found.seconds == 2700.0  # one run is one run
    assert found.why == (
        "stage 0:01:40, train 0:16:40, evaluate 0:01:00, start 0:00:40 by one earlier run, done "
        "within 0:38:51 with a probability of 95%, plus 5 minutes"
    )
    assert "pack 0:00:50 by one earlier run" in choice(make_run(site="chosen"), "cpu").why
    for _ in range(2):
        earlier_run()
    assert choice(make_run(site="chosen")).seconds == 1800.0  # 1240 s, as always, and 300 s
    found = make_run(site="chosen", overrides=("pack_role=gpu",))  # what was packed on another role
    assert choice(found).seconds == 1800.0
    assert choice(found).why.startswith("pack 0:00:05, stage 0:01:4")


def test_a_lease_with_half_as_many_ranks_gets_more_and_another_model_tells_nothing() -> None:
    earlier_run()
    script = ("model=null", "evaluate=null", f"train.script={__file__}")
    two, other = (
        previews(load_recipe("digits", (f"train.nodes={nodes}", *more)), load_site("chosen"))[1]
        for nodes, more in ((1, ()), (2, script))
    )
    assert "train 0:33:20" in two.walltime.why
    assert "how long train will" in other.walltime.why


def test_steps_that_have_succeeded_and_other_sites_do_not_count() -> None:
    run = earlier_run()
    assert choice(run).why == "none of its steps is left"
    site = load_site("chosen").model_copy(update={"name": "elsewhere"})
    (gang,) = (each for each in previews(load_recipe("digits"), site) if each.role == "gpu")
    assert gang.walltime.seconds == 3600.0


def test_packing_that_found_its_dataset_tells_nothing_and_staging_little() -> None:
    run = make_run(site="chosen")
    step_ended(run, "pack", lease_on_disk(run, "cpu"), 1.0, outputs={"reused": True})
    step_ended(run, "stage", lease_on_disk(run, "gpu"), 1.0, outputs={"copied_bytes": 0})
    again = make_run(site="chosen")
    assert "how long pack will" in choice(again, "cpu").why
    assert choice(again).why.startswith("stage 0:00:01 by one earlier run")
    earlier_run()
    assert choice(again).why.startswith("stage 0:01:40, ")


def timed_out(run: Run, kept: float, total: float | None) -> str:
    """A lease of half an hour that was over before training was."""
    lease_id = lease_on_disk(run, "gpu")
    folder = run.lease_folder(lease_id)
    spec = read_record(folder.spec, LeaseSpec)
    assert spec is not None
    walltime = Walltime(seconds=1800.0, most_s=7200.0, why="")
    role = walltime.of(spec.role)
    write_record(folder.spec, spec.model_copy(update={"walltime": walltime, "role": role}))
    step_ended(
        run, "train", lease_id, 1000.0, state=StepState.FAILED,
        failure_class=FailureClass.TIMED_OUT, outputs={PROGRESS: kept, TOTAL: total},
    )  # fmt: skip
    return lease_id


@pytest.mark.parametrize(
    ("kept", "total", "expected", "words"),
    [
        (0.0, 100.0, 3600.0, "0:30:00 was too short for the previous lease, so twice that"),
        (7.0, None, 3600.0, "so twice that"),  # a script
        (50.0, 450.0, 13500.0, "train 2:13:20"),  # 8000 s for what is left
    ],
)
def test_after_a_time_out_the_next_lease_is_longer(
    kept: float, total: float | None, expected: float, words: str
) -> None:
    run = make_run(site="chosen")
    timed_out(run, kept, total)
    found = choice(run)
    assert found.seconds == expected
    assert words in found.why


def test_the_first_step_that_was_kept_tells_how_long_the_rest_takes() -> None:
    earlier_run()
    run = make_run(site="chosen")
    timed_out(run, 1.0, 2.0)
    assert "train 0:13:55" in choice(run).why  # half of between 1000 s, as known, and 2000 s


def test_a_queue_that_gives_less_is_told(sites: Path) -> None:
    answers(sites, "sinfo", "echo 'main*|30:00'")
    found = choice(make_run(site="chosen"))
    assert (found.seconds, found.most_s) == (1800.0, 1800.0)
    assert found.why.endswith("1:00:00 is more than Slurm's longest job, 0:30:00")
    answers(sites, "sinfo", "exit 1")
    assert choice(make_run(site="chosen")).most_s == 86400.0


def test_time_outs_do_not_end_a_run_whose_leases_still_grow() -> None:
    """pains 31: only the longest lease in which a step came no further is one too many."""
    run = make_run(site="chosen")
    lease_id = timed_out(run, 0.0, 100.0)
    attempt_row_of(
        run, "train", lease_id, attempt=2, key="2", state=StepState.FAILED, started_at=0.0,
        finished_at=9.0, failure_class=FailureClass.TIMED_OUT, outputs={PROGRESS: 0.0},
    )  # fmt: skip
    failure = Failure(failure_class=FailureClass.TIMED_OUT, error="E", message="over")
    result = StepResult(state=StepState.FAILED, failure=failure, started_at=0, finished_at=9)
    step = step_of(run.recipe, run.request.kind, "train")
    memory = Memory(result=result)
    action = decide(observe(run, step, memory), memory)
    assert isinstance(action, Wait)
    assert action.on == "retry"
    folder = run.lease_folder(lease_id)
    spec = read_record(folder.spec, LeaseSpec)
    assert spec is not None
    longest = Walltime(seconds=7200.0, most_s=7200.0, why="")
    write_record(folder.spec, spec.model_copy(update={"walltime": longest}))
    action = decide(observe(run, step, memory), memory)
    assert isinstance(action, End)
    assert "lifetime_max" in conclude(run, step, action).failure.message
    recorded = (
        open_ledger().attempts(run.run_id, "train")[-1].message
    )  # what `headrace status` shows
    assert recorded is not None
    assert "lifetime_max" in recorded


def test_only_a_lease_whose_time_was_chosen_can_grow() -> None:
    run = make_run(site="chosen")
    assert not _can_grow(run, "never-was")
    assert not _can_grow(run, lease_on_disk(run, "gpu"))


def test_a_lease_keeps_its_choice_and_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(site="chosen")
    monkeypatch.setattr(
        leases.lease_client, "start", lambda folder, spec, _: write_spec(folder, spec)
    )
    monkeypatch.setattr(lease_machines, "refusal", lambda *_: "")  # there is no Slurm

    def write_spec(folder: Any, spec: LeaseSpec) -> None:
        folder.path.mkdir(parents=True, exist_ok=True)
        write_record(folder.spec, spec)

    caplog.set_level("INFO", "headrace.leases.run_leases")
    lease_id = leases.acquire(run, "gpu")
    earlier_run()
    assert leases.acquire(run, "gpu") == lease_id  # asked again while it waits for its turn
    told = [record.getMessage() for record in caplog.records if record.name == leases.logger.name]
    assert len(told) == 1
    assert told[0].startswith(f"Lease {lease_id} gets 1:00:00: no earlier run shows")
    spec = leases.lease_client.spec(run.lease_folder(lease_id))
    assert (spec.role.lifetime_s, spec.role.lifetime_max) == (3600.0, None)
    shown = headrace("lease", "show", lease_id, "--site", "chosen")
    assert "1:00:00, chosen: no earlier run shows how long" in shown.output
    assert open_ledger().lease(lease_id).role == "gpu"


def test_plan_explains_the_choice_for_gang_and_pool() -> None:
    earlier_run()
    found = {each.role: each for each in previews(load_recipe("digits"), load_site("chosen"))}
    assert "#SBATCH --time=00:45:00" in found["gpu"].script
    assert found["gpu"].time.startswith("time limit 0:45:00, chosen: stage 0:01:40, train 0:16:40")
    assert "goes on in another job" in found["gpu"].time
    assert "#SBATCH --time=00:10:00" in found["cpu"].script
    assert found["cpu"].time.startswith("time limit 0:10:00 of each node, chosen: pack 0:00:50 by")
    assert found["cpu"].time.endswith("and the pool lasts 2 days, 0:00:00 at most")


def test_the_slowest_of_the_newest_starts_counts(tmp_path: Path) -> None:
    """Seconds from the start of a job to its nodes; the fourth lease is too long ago."""
    host = ProcessIdentity.of()
    attempts = []
    for number, seconds in enumerate((20.0, None, -5.0, 99.0)):
        folder = LeaseFolder(tmp_path / f"l{number}")
        folder.path.mkdir()
        write_record(folder.host, HostRecord(process=host, started_at=100.0))
        if seconds is not None:
            info = demo_info(
                "l", backend="slurm", host=host, dashboard_url="", nodes=2, ready_at=100.0 + seconds
            )
            write_record(folder.info, info)
        attempts += [attempt_row(step, lease_id=f"l{number}") for step in ("stage", "train")]
    assert start_s(attempts, tmp_path) == 20.0
    assert start_s(attempts[4:], tmp_path) == 99.0
    assert start_s(attempts[2:6], tmp_path) == 0.0
    assert start_s([], tmp_path) == 0.0


HOUR = 3600.0
SECONDS = st.floats(0, 1e6)
TIMES = st.lists(st.none() | SECONDS, max_size=4)


def chosen(
    *times: float | None,
    most_s: float = 48 * HOUR,
    spread: float = 0.0,
    **more: float | None,
) -> Walltime:
    parts = {
        str(place): None if each is None
        else PredictedPart(name="step", seconds=each, spread=spread, shared=0.0, num_known=1)
        for place, each in enumerate(times)
    }  # fmt: skip
    return choose(parts, Walltime(seconds=most_s, most_s=most_s, why="the queue's"), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("times", "more", "expected"),
    [
        ((10.0,), {}, FLOOR_S),
        ((), {}, FLOOR_S),
        ((1000.0, 200.0), {}, 1500.0),
        ((1000.0, 200.0), {"start_s": 1.0}, 1800.0),
        ((1000.0,), {"spread": 0.3}, 2100.0),  # 1638 s are its 0.95 quantile
        ((HOUR,), {}, 1.25 * HOUR),
        ((10 * HOUR,), {}, 11 * HOUR),
        ((100 * HOUR,), {}, 48 * HOUR),
        ((None,), {}, HOUR),
        ((10.0, None), {}, HOUR),
        ((HOUR, None), {}, 1.25 * HOUR),
        ((10.0,), {"too_short_s": FLOOR_S}, 2 * FLOOR_S),
        ((10 * HOUR,), {"too_short_s": FLOOR_S}, 11 * HOUR),
        ((None,), {"too_short_s": 40 * HOUR}, 48 * HOUR),
        ((None,), {"most_s": 300.0}, 300.0),
    ],
)
def test_choices(times: tuple[float | None, ...], more: dict[str, float], expected: float) -> None:
    assert chosen(*times, **more).seconds == expected


@settings(max_examples=50)
@given(TIMES, SECONDS, st.none() | SECONDS, st.floats(1, 1e6))
def test_a_choice_lies_between_floor_and_most(
    times: list[float | None], start_s: float, too_short_s: float | None, most_s: float
) -> None:
    seconds = chosen(*times, start_s=start_s, too_short_s=too_short_s, most_s=most_s).seconds
    assert min(FLOOR_S, most_s) <= seconds <= most_s


@settings(max_examples=50)
@given(st.lists(SECONDS, min_size=1, max_size=4), SECONDS, SECONDS, st.data())
def test_what_takes_longer_never_gets_less(
    times: list[float], more_s: float, start_s: float, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(times) - 1))
    longer = [each + more_s * (place == index) for place, each in enumerate(times)]
    before = chosen(*times, start_s=start_s)
    assert chosen(*longer, start_s=start_s).seconds >= before.seconds
    assert chosen(*times, start_s=start_s + more_s).seconds >= before.seconds
    assert chosen(*times, None, start_s=start_s).seconds >= before.seconds
    assert chosen(*times, start_s=start_s, too_short_s=more_s).seconds >= before.seconds


@settings(max_examples=50)
@given(st.floats(1, 1e6))
def test_rounding_never_takes_away_and_adds_an_hour_at_most(seconds: float) -> None:
    assert seconds <= rounded_up(seconds) < seconds + HOUR
