"""Medians, spreads and comparisons of probes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_probes.probe_records import Measurement
from headrace_probes.statistics import compared, efficiency, spread_of, summaries

FIVE = (10.0, 11.0, 12.0, 13.0, 14.0)


def measured(values: tuple[float, ...] = FIVE, **changes: Any) -> Measurement:
    given = {"part": "gemm", "name": "fp32", "settings": "2048", "unit": "GFLOP/s"}
    return Measurement(**{**given, "values": values, **changes})


def test_the_spread_is_that_of_the_middle_half():
    assert spread_of(FIVE) == pytest.approx(2 / 12)
    assert spread_of((3.0,)) == 0.0
    assert spread_of((10.0, 10.0, 10.0, 10.0, 1000.0)) == 0.0  # one that was disturbed


def test_nodes_are_put_together_and_the_slowest_is_named():
    first = measured(node="node-0", limit=24.0)
    slow = measured(tuple(each / 2 for each in FIVE), node="node-1", limit=24.0)
    (row,) = summaries([first, slow])
    assert (row.nodes, row.slowest, len(row.values)) == (2, "node-1", 10)
    assert row.of_limit == pytest.approx(row.median / 24)
    times = [measured(lower_is_better=True, node=name, values=value)
             for name, value in (("node-0", FIVE), ("node-1", (20.0,)))]  # fmt: skip
    assert summaries(times)[0].slowest == "node-1"


def test_figures_with_other_settings_are_not_compared():
    before, after = summaries([measured()]), summaries([measured(settings="4096")])
    both, alone = compared(before, after)
    assert both == ()
    assert [row.settings for row in alone] == ["2048", "4096"]


def test_a_loss_is_one_for_rates_and_for_times():
    for lower_is_better, factor in ((False, 0.5), (True, 1.5)):
        before = measured(lower_is_better=lower_is_better)
        after = measured(tuple(factor * each for each in FIVE), lower_is_better=lower_is_better)
        ((found,), _) = compared(summaries([before]), summaries([after]))
        assert found.loss == pytest.approx(0.5)
        assert found.is_beyond


def test_repeats_that_lie_among_each_other_do_not_differ():
    after = measured((9.0, 11.5, 12.5, 13.5, 13.8))
    ((found,), _) = compared(summaries([measured()]), summaries([after]))
    assert not found.is_beyond
    almost = measured((13.9, 15.0, 16.0, 17.0, 18.0))  # one of them is below the best before
    ((found,), _) = compared(summaries([measured()]), summaries([almost]))
    assert not found.is_beyond


@given(st.lists(st.floats(min_value=1.0, max_value=1e6), min_size=5, max_size=12))
def test_a_place_never_differs_from_itself(values: list[float]):
    rows = summaries([measured(tuple(values))])
    ((found,), alone) = compared(rows, rows)
    assert (found.loss, found.is_beyond, alone) == (0.0, False, ())


def test_scaling_efficiency_needs_one_rank_and_several():
    one = measured((10.0,), part="train", name="1", ranks=1)
    four = measured((30.0,), part="train", name="4", ranks=4)
    assert efficiency(summaries([one, four])) == pytest.approx(0.75)
    assert efficiency(summaries([one])) is None
    assert efficiency(summaries([four])) is None
    assert efficiency(()) is None
