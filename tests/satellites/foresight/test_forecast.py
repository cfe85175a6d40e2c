"""Durations from known ones, and when work under way will be done."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import UserError
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.runs.lifecycle import finish_run
from headrace.runs.prediction import Forecast
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.status.run_list import runs_page
from headrace.steps.mailbox import Progress, StepStatus
from headrace_airflow import eta_changes as module
from headrace_airflow.eta_changes import ReportedEta, eta_changes
from headrace_foresight import forecast
from headrace_foresight.forecast import Running, corrected, duration_s, durations, eta
from support.command_line import headrace
from support.factories import prediction
from support.runs import make_run, running


def taken(random: np.random.Generator, num: int) -> list[tuple[dict[str, float | str], float]]:
    """Trials as they are: an overhead, epochs, a width, and a rate that does not matter."""
    found: list[tuple[dict[str, float | str], float]] = []
    for _ in range(num):
        epochs, width = float(random.integers(1, 20)), float(random.integers(8, 128))
        features = {
            "trainer.max_epochs": epochs,
            "model.width": width,
            "model.lr": float(10 ** random.uniform(-4, -1)),
            "model.optimizer": str(random.choice(["adam", "sgd"])),
        }
        seconds = (5 + 0.4 * epochs * width**0.7) * math.exp(random.normal(0, 0.03))
        found.append((features, seconds))
    return found


@pytest.mark.parametrize(("num", "most", "share"), [(5, 0.45, 0.8), (20, 0.10, 0.75)])
def test_forecasts_hold_for_work_that_was_not_known(num, most, share):
    errors, held = [], []
    for seed in range(10):
        random = np.random.default_rng(seed)
        known, out = taken(random, num), taken(random, 20)
        found = durations(known, [features for features, _ in out])
        errors += [abs(each.seconds / s - 1) for each, (_, s) in zip(found, out, strict=True)]
        bounds = [each.interval for each in found]
        held += [low <= s <= high for (low, high), (_, s) in zip(bounds, out, strict=True)]
    assert np.median(errors) < most
    assert np.mean(held) > share  # of intervals that promise 0.8


@pytest.mark.parametrize("num_known", [1, 7, 60])
def test_a_posterior_is_that_of_scikit_learn(num_known: int) -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

    random = np.random.default_rng(num_known)
    columns = random.normal(size=(num_known + 5, 3))
    logs = columns[:num_known, 0] + random.normal(2, 0.1, num_known)
    kernel = ConstantKernel(1e4) + 0.2**2 * DotProduct(0.0, "fixed") + 0.6**2 * RBF(1.0)
    doubts = 0.1**2 * forecast.AGEING ** -np.arange(num_known)[::-1]
    process = GaussianProcessRegressor(kernel, alpha=doubts, optimizer=None)
    process.fit(columns[:num_known], logs - logs.mean())
    wanted, errors = process.predict(columns[num_known:], return_std=True)

    evidence, means, spreads = forecast._posterior(columns, logs, (0.1, 0.2, 0.6))
    _, *again = forecast._posterior(columns, logs, (0.15, 0.1, 0.6))

    np.testing.assert_allclose(means, wanted + logs.mean(), rtol=1e-9)
    np.testing.assert_allclose(spreads, errors, rtol=1e-6)
    beforehand = -0.5 * (math.log(0.1 / 0.15) ** 2 + math.log(0.2 / 0.1) ** 2)
    assert evidence == pytest.approx(beforehand + process.log_marginal_likelihood_value_)
    assert not np.allclose(again, (means, spreads))


def test_a_forecast_imports_no_large_library() -> None:
    told = (
        "import sys; from headrace_foresight.forecast import duration_s;"
        "duration_s([({'samples': 1.0}, 60.0)], {'samples': 2.0});"
        "print(sorted({'scipy', 'sklearn', 'torch', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_one_known_duration_is_scaled_by_what_work_there_is():
    features = {"trainer.max_epochs": 2.0, "samples": 1000.0}
    found = duration_s([(features, 60.0)], {"trainer.max_epochs": 6.0, "samples": 1000.0})
    assert found.seconds == pytest.approx(180.0, rel=0.01)
    low, high = found.interval
    assert low < 150 < 220 < high  # one point is one point


def test_nothing_known_gives_no_forecast():
    assert duration_s([], {"trainer.max_epochs": 1.0}) is None


def test_repeats_shrink_to_their_mean():
    known = [({"seed": float(seed)}, seconds) for seed, seconds in enumerate([98.0, 103, 99, 101])]
    found = duration_s(known, {"seed": 9.0})
    assert found.seconds == pytest.approx(100.2, rel=0.05)


def test_newer_work_tells_more_than_older():
    found = duration_s([({}, 20.0)] * 30 + [({}, 10.0)] * 30, {})
    assert found.seconds == pytest.approx(11.3, rel=0.05)


def test_progress_outweighs_the_forecast_as_more_is_done():
    before = Forecast(seconds=100.0, spread=0.3)
    totals = [
        corrected(Running(forecast=before, elapsed_s=200 * done, done=done)).seconds
        for done in (0.01, 0.3, 0.9)
    ]
    assert totals[0] == pytest.approx(100.0, rel=0.05)
    assert 110 < totals[1] < 190
    assert totals[2] == pytest.approx(200.0, rel=0.03)


def test_work_that_outlasts_its_forecast_is_not_taken_to_end_at_once():
    forecast = Forecast(seconds=100.0, spread=0.2)
    left = [
        eta([], 1, [Running(forecast=forecast, elapsed_s=elapsed)]).seconds
        for elapsed in (0.0, 50.0, 100.0, 150.0, 1000.0)
    ]
    assert left[0] == pytest.approx(100.0, rel=0.05)
    assert left[1] == pytest.approx(50.0, rel=0.1)
    assert 8 < left[2] < 20  # mean 100 and spread 0.2: the upper half has its median there
    assert left[3] > 3
    assert left[4] > 100


def test_eta_is_that_of_list_scheduling_where_all_is_certain():
    known = [Forecast(seconds=seconds) for seconds in (5.0, 4.0, 3.0, 3.0, 3.0)]
    found = eta(known, 2)
    assert (found.seconds, found.half_s) == (10.0, 0.0)
    late = eta(known, 2, [Running(forecast=Forecast(seconds=10.0), elapsed_s=4.0)])
    assert late.seconds == pytest.approx(12.0, rel=0.02)  # 6 s are left of what runs


def test_work_that_may_be_ended_early_takes_a_share_of_its_time():
    some = [Forecast(seconds=100.0, shares=(0.1, 0.1, 0.1, 1.0))] * 400
    assert eta(some, 4).seconds == pytest.approx(100 * 100 * 1.3 / 4, rel=0.05)
    assert eta(some[:4], 1).half_s > 60.0


def test_work_that_has_come_further_than_others_were_ended_is_taken_to_go_on():
    forecast = Forecast(seconds=100.0, spread=0.05, shares=(0.1, 0.5))
    left = [
        eta([], 1, [Running(forecast=forecast, elapsed_s=elapsed, done=elapsed / 100)]).seconds
        for elapsed in (20.0, 60.0)
    ]
    assert left == [pytest.approx(30.0, rel=0.1), pytest.approx(40.0, rel=0.1)]


@pytest.mark.parametrize("kind", ["spread", "shared"])
def test_the_middle_of_one_uncertain_duration_is_its_median(kind):
    found = eta([Forecast(seconds=100.0, **{kind: 0.5})], 1)
    assert found.seconds == pytest.approx(100.0, rel=0.01)
    assert found.half_s == pytest.approx(100 * math.sinh(1.28 * 0.5), rel=0.02)


def test_the_interval_of_a_suite_grows_with_what_all_its_trials_may_be_wrong_by():
    own = eta([Forecast(seconds=10.0, spread=0.2)] * 400, 4)
    together = eta([Forecast(seconds=10.0, shared=0.2)] * 400, 4)
    assert own == eta([Forecast(seconds=10.0, spread=0.2)] * 400, 4)
    assert own.half_s / own.seconds < 0.02
    assert together.half_s / together.seconds == pytest.approx(math.sinh(1.28 * 0.2), rel=0.25)


HOUR_S = 3600.0
STEPS = ("pack", "stage", "train", "evaluate")


@pytest.fixture
def run(headrace_home) -> Run:
    """One that nothing of has begun; it was to take four hours."""
    run = make_run()
    write_record(run.folder.prediction, prediction(dict.fromkeys(STEPS, HOUR_S), 1e-4, half_s=60.0))
    return run


def told(run: Run, ends_in_s: float) -> None:
    """Somebody was told that the run ends then."""
    write_record(run.folder.eta, ReportedEta(ends_at=time.time() + ends_in_s))


def test_an_end_that_stays_is_not_told(run):
    assert list(eta_changes()) == []
    told(run, 4.9 * HOUR_S)  # less than a quarter of four hours
    assert list(eta_changes()) == []


@pytest.mark.parametrize(("before_s", "how"), [(2.5, "90 min later"), (5.5, "90 min earlier")])
def test_a_move_is_told_once(run, before_s: float, how: str):
    told(run, before_s * HOUR_S)
    (change,) = eta_changes()
    assert change.run_id == run.run_id
    assert change.now - time.time() == pytest.approx(4 * HOUR_S, rel=0.01)
    assert change.words.startswith(f"digits on laptop ends {how} than expected: ")
    assert list(eta_changes()) == []


def test_the_first_move_is_from_what_was_foreseen(run, monkeypatch):
    at = open_ledger().run(run.run_id).created_at
    monkeypatch.setattr(module.time, "time", lambda: at + 2 * HOUR_S)  # and nothing has begun
    (change,) = eta_changes()
    assert change.before == at + 4 * HOUR_S
    assert list(eta_changes()) == []


def test_a_move_that_could_not_be_told_is_told_later(run):
    told(run, HOUR_S)
    next(eta_changes())
    assert len(list(eta_changes())) == 1


def test_short_runs_and_those_that_have_ended_are_left_alone(run):
    told(run, HOUR_S)
    finish_run(run, StepState.SUCCEEDED)
    assert list(eta_changes()) == []
    short = make_run()
    write_record(short.folder.prediction, prediction(dict.fromkeys(STEPS, 10.0), 1e-4, half_s=1.0))
    told(short, 500.0)
    assert list(eta_changes()) == []


def test_what_was_foretold_gives_the_end_of_a_run_under_way(headrace_home):
    status = StepStatus(state=StepState.RUNNING, progress=Progress(done=1, total=2), elapsed_s=50)
    run = running("train", status)
    parts = {"train": 100.0, "evaluate": 100.0}
    write_record(run.folder.prediction, prediction(parts, 0.01, gpu_hours=None))
    assert runs_page().rows[0].eta_s == pytest.approx(150.0, rel=0.1)


def rows(*words: str) -> list[dict[str, Any]]:
    told = headrace("what-if", *words, "--json")
    assert told.exit_code == 0, told.output
    return list(json.loads(told.output))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "trials.csv"
    path.write_text("hours\n5\n4\n3\n3\n3\n")
    return str(path)


def test_scenarios_are_compared_and_the_best_are_marked(headrace_home: Path, file: str):
    words = (file, "--nodes", "1,2,9", "--price", "2", "--order", "longest,given")
    found = rows(*words)
    spans = [(row["nodes"], row["order"], row["makespan_s"]["mean"] / 3600) for row in found]
    assert spans == [
        (1, "longest", 18.0), (1, "given", 18.0), (2, "longest", 10.0), (2, "given", 10.0),
        (9, "longest", 5.0), (9, "given", 5.0),
    ]  # fmt: skip
    assert {row["usd"]["mean"] for row in found} == {36.0}
    assert [row["is_fastest"] for row in found] == [False] * 4 + [True] * 2
    told = headrace("what-if", *words).output
    assert "5 durations of" in told
    assert "10.0 h  $36.00" in told
    assert "fastest, cheapest" in told
    assert not list(headrace_home.glob("ledger*"))  # asking makes no file


def test_spot_instances_are_cheaper_and_uncertain(headrace_home: Path, file: str):
    words = ("--spot", "0,1", "--price", "2", "--spot-price", "0.5", "--interruptions", "0.5")
    fixed, spot = rows(file, "--checkpoint", "1h", *words)
    assert fixed["interruptions"]["mean"] == 0 < spot["interruptions"]["mean"]
    assert spot["is_cheapest"]
    assert spot["makespan_s"]["low"] < spot["makespan_s"]["high"]
    assert spot["waste"]["mean"] > 0 == fixed["waste"]["mean"]


def test_nodes_beside_packing_and_time_limits(headrace_home: Path, file: str):
    (beside,) = rows(file, "--also", "1x4@1.5", "--price", "1")
    assert beside["makespan_s"]["mean"] == 5 * 3600
    assert beside["usd"]["mean"] == 5 * 1.0 + 4 * 1.5  # the box is paid as long as it works
    packed = rows(file, "--pack", "1,5", "--slow-down", "0.1")
    assert [row["makespan_s"]["mean"] for row in packed] == [64_800, pytest.approx(23_400, rel=0.1)]
    cut = rows(file, "--walltime", "4h,1d", "--boot", "1h")
    assert [row["makespan_s"]["mean"] / 3600 for row in cut] == [18 + 6, 18 + 1]


def test_a_price_that_nobody_knows_is_told(headrace_home: Path, file: str):
    (row,) = rows(file)
    assert row["usd"] is None
    assert headrace("what-if", file).output.splitlines()[-1].split()[3] == "?"
    (row,) = rows(file, "--site", "laptop")
    assert (row["site"], row["nodes"], row["usd"]) == ("laptop", 1, None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "The trials' durations are missing"),
        (("digits",), "No earlier run shows how long digits takes on laptop"),
        (("FILE", "--duration", "1h"), "given twice"),
        (("FILE", "--nodes", "1,x"), "--nodes is '1,x'"),
        (("FILE", "--nodes", "0"), "--nodes is '0'"),
        (("FILE", "--order", "best"), "Valid orders: longest, given, shortest"),
        (("FILE", "--spot", "2"), "shares are from 0 to 1"),
        (("FILE", "--also", "8"), "--also is '8'"),
        (("FILE", "--trials", "7"), "has 5"),
        (("FILE", "--budget", "0"), "--budget is 0"),
        (("FILE", "--site", "laptop", "--site", "laptop"), "'laptop', which is named twice"),
        (("FILE", "--walltime", "1h", "--boot", "1h"), "longer than booting"),
        (("--duration", "1h:2h"), "are not a range"),
        (("FILE", "--nodes", ",".join(map(str, range(1, 300)))), "299 scenarios"),
    ],
)
def test_questions_that_cannot_be_answered(
    headrace_home: Path, file: str, words: tuple[str, ...], told: str
):
    with pytest.raises(UserError) as error:
        headrace("what-if", *(file if word == "FILE" else word for word in words))
    assert told in str(error.value)
