"""Durations that users state, and simulated suites."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import UserError
from headrace_foresight.durations import duration_of, filling, read_durations
from headrace_foresight.scenario import Nodes, Outcome, Scenario, SimulatedJob
from headrace_foresight.simulate import repeated, simulate

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5h", 5400), ("1h2m", 3720), ("10d16h", 921_600), ("2 min 3s", 123)],
)
def test_words_of_people(text, seconds):
    assert duration_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "-3h", "1h2", "0s", "nan", "1e9999", "9" * 400])
def test_what_is_no_duration_is_told(text):
    with pytest.raises(UserError, match="is not a duration"):
        duration_of(text)


def test_durations_between_bounds_have_the_given_sum():
    found = filling(62 * 60, 256 * HOUR_S, 1386, 16_542 * HOUR_S)
    assert len(found) == 1386
    assert found.sum() / HOUR_S == pytest.approx(16_542)
    assert (found[0], found[-1]) == pytest.approx((256 * HOUR_S, 62 * 60))
    assert (np.diff(found) <= 0).all()
    free = filling(10.0, 1000.0, 101)
    assert np.median(free) == pytest.approx(100.0)  # the geometric mean


@pytest.mark.parametrize(
    ("low", "high", "count", "total", "told"),
    [
        (10.0, 5.0, 3, None, "are not a range"),
        (5.0, 10.0, 1, None, "are not a range"),
        (5.0, 10.0, 3, 100.0, "They take 20"),
        (5.0, 10.0, 3, 1.0, "cannot take"),
    ],
)
def test_bounds_and_sums_that_cannot_be(low, high, count, total, told):
    with pytest.raises(UserError) as error:
        filling(low, high, count, total)
    assert told in str(error.value)


def test_a_csv_file_is_read_in_its_own_unit(tmp_path: Path):
    file = tmp_path / "trials.csv"
    for text, seconds in (
        ("name,hours\na,1\nb,0.5\n", [3600, 1800]),
        ("duration\n1h2m\n", [3720]),
        ("seconds,lr\n5,1e-3\n", [5]),
    ):
        file.write_text(text)
        assert read_durations(file) == seconds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has the columns none"),
        ("hours\n", "has no durations"),
        ("time\n3\n", "has the columns time"),
        ("seconds\n3\nfast\n", "line 3: 'fast'"),
        ("seconds\n-3\n", "line 2: '-3'"),
        ("hours,seconds\nnan,\n", "'nan'"),
        ("name,hours\na\n", "line 2: ''"),
        ("duration\n1x\n", "'1x'"),
    ],
)
def test_bad_files_are_told_with_the_line(tmp_path: Path, text: str, told: str):
    file = tmp_path / "trials.csv"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        read_durations(file)
    assert told in str(error.value)
    with pytest.raises(UserError, match="cannot be read"):
        read_durations(tmp_path / "none.csv")


SECONDS = (5.0, 4.0, 3.0, 3.0, 3.0)


def jobs(*seconds: float) -> list[SimulatedJob]:
    return [SimulatedJob(seconds=each) for each in seconds]


def once(trials: list[SimulatedJob], *nodes: Nodes, seed: int = 0, **changes: object) -> Outcome:
    scenario = Scenario(nodes=nodes, **changes)  # type: ignore[arg-type]
    return simulate(trials, scenario, np.random.default_rng(seed))


def test_one_node_takes_the_sum_and_many_take_the_longest():
    one = once(jobs(*SECONDS), Nodes(count=1, usd_per_hour=HOUR_S))
    assert (one.makespan_s, one.usd, one.utilisation) == (18.0, 18.0, 1.0)
    many = once(jobs(*SECONDS), Nodes(count=9, usd_per_hour=HOUR_S))
    assert (many.makespan_s, many.usd) == (5.0, 18.0)  # nodes that are done are given back


def test_orders_are_kept_and_longest_first_meets_the_bound_of_graham():
    """R. L. Graham, Bounds on multiprocessing timing anomalies, 1969: 4/3 - 1/(3m)."""
    spans = {
        order: once(jobs(3, 3, 3, 4, 5), Nodes(count=2), order=order).makespan_s
        for order in ("longest", "given", "shortest")
    }
    assert spans == {"longest": 10.0, "given": 11.0, "shortest": 11.0}
    random = np.random.default_rng(5)
    for _ in range(10):
        seconds = [float(each) for each in random.integers(1, 20, 9)]
        places = itertools.product(range(3), repeat=9)
        shares = (np.bincount(each, weights=seconds, minlength=3).max() for each in places)
        best = min(itertools.islice(shares, 0, 3**8))  # the first may stay on the first
        assert once(jobs(*seconds), Nodes(count=3)).makespan_s <= best * (4 / 3 - 1 / 9) + 1e-9


def test_trials_on_one_gpu_slow_each_other_only_while_they_share_it():
    outcome = once(jobs(4, 10), Nodes(count=1), pack=2, slow_down=0.5)
    assert outcome.makespan_s == 6.0 + 6.0  # both at two thirds of the speed, then one alone
    assert once(jobs(4, 10), Nodes(count=1)).makespan_s == 14.0
    wide = [SimulatedJob(seconds=2, gpus=2), *jobs(3, 3)]
    assert once(wide, Nodes(count=1, gpus=2), pack=2).makespan_s == 5.0  # never beside a wide one
    mixed = once(wide, Nodes(count=1), Nodes(count=1, gpus=2), order="given")
    assert mixed.makespan_s == 5.0  # the small node leaves the wide trial alone


def test_interruptions_cost_what_lies_after_the_last_checkpoint():
    """With rate l, a trial of length T from its beginning takes (exp(l T) - 1) / l on average."""
    spot = Nodes(count=1, interruptions_per_hour=1.0)
    again = Scenario(nodes=(spot,), checkpoint_s=1e9)
    found = repeated(lambda _: jobs(HOUR_S), again, repeats=800, seed=3)["makespan_s"]
    assert found.mean == pytest.approx((np.e - 1) * HOUR_S, rel=0.1)
    assert found.low <= HOUR_S + 1e-3 < found.high
    saved = Scenario(nodes=(spot,), checkpoint_s=1.0)
    assert repeated(lambda _: jobs(HOUR_S), saved, repeats=20)["makespan_s"].mean < HOUR_S * 1.01
    lost = simulate(jobs(HOUR_S * 3), again, np.random.default_rng(1))
    assert lost.interruptions > 0
    assert lost.waste == pytest.approx(1 - 3 / lost.node_hours)


def test_a_time_limit_is_filled_up_and_longer_trials_go_on_in_the_next_node():
    limited = Nodes(count=1, walltime_s=10.0, boot_s=1.0, usd_per_hour=HOUR_S)
    filled = once(jobs(6, 5, 2), limited, restart_s=0.5)  # 6 and 2 in the first node
    assert (filled.makespan_s, filled.usd) == (10 + 1 + 5.5, 16.5)
    long = once(jobs(20), limited, restart_s=0.5)
    assert long.makespan_s == pytest.approx(20 + 3 * 1.5)  # 8.5, 8.5 and 3 of it
    assert long.waste == pytest.approx(4.5 / 24.5)


def test_waiting_for_a_node_costs_nothing_and_booting_does():
    queued = Scenario(nodes=(Nodes(count=1, queue_s=600.0, boot_s=60.0, usd_per_hour=60.0),))
    found = repeated(lambda _: jobs(540.0), queued, repeats=400)
    assert found["makespan_s"].mean == pytest.approx(1200.0, rel=0.1)
    assert (found["usd"].low, found["usd"].high) == pytest.approx((10.0, 10.0))
    assert found["utilisation"].mean == pytest.approx(0.9)


def test_repeats_with_a_seed_are_the_same():
    scenario = Scenario(nodes=(Nodes(count=3, interruptions_per_hour=0.5, queue_s=60.0),))
    trials = [SimulatedJob(seconds=HOUR_S)] * 10
    found = [repeated(lambda _: trials, scenario, repeats=5, seed=seed) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("trials", "nodes"),
    [
        ([], Nodes(count=1)),
        ([SimulatedJob(seconds=1, gpus=2)], Nodes(count=1)),
        (jobs(1), Nodes(count=0)),
        (jobs(1), Nodes(count=1, walltime_s=5, boot_s=5)),
    ],
)
def test_what_could_never_end_is_refused(trials, nodes):
    with pytest.raises(ValueError, match="must be"):
        once(trials, nodes)
