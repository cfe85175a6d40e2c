"""Durations from known ones, and when work under way will be done."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from headrace_foresight import forecast
from headrace_foresight.forecast import (
    Forecast,
    Running,
    corrected,
    duration_s,
    durations,
    eta,
)


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
    own = eta([Forecast(seconds=10.0, spread=0.2)] * 400, 4, seed=1)
    together = eta([Forecast(seconds=10.0, shared=0.2)] * 400, 4, seed=1)
    assert own == eta([Forecast(seconds=10.0, spread=0.2)] * 400, 4, seed=1)
    assert own.half_s / own.seconds < 0.02
    assert together.half_s / together.seconds == pytest.approx(math.sinh(1.28 * 0.2), rel=0.25)
