"""`headrace bench suite` and `foresight`: a few trials and runs, and a peer that is not there."""

from __future__ import annotations

import json
import sys

import pytest

from headrace.errors import StepError
from headrace_bench.foresight import Foretold, in_words
from support.command_line import headrace


@pytest.mark.slow
def test_trials_are_counted_and_a_missing_peer_is_named() -> None:
    answer = json.loads(headrace("bench", "suite", "--trials", "4", "--json").stdout)
    assert (answer["trials"], answer["workers"]) == (4, 2)
    assert answer["seconds_per_trial"]["headrace"] > 0
    with pytest.raises(StepError, match=r"No module named 'ray'\n.*pip install 'ray\[tune\]'"):
        headrace("bench", "suite", "--peers", sys.executable)


@pytest.mark.slow
def test_predictions_are_summed_up_by_how_many_runs_were_known() -> None:
    found = [
        Foretold(what=f"{num}", num_known=num, predicted_s=said, half_s=2.0, took_s=took, parts={})
        for num, said, took in ((0, None, 9.0), (1, 10.0, 9.0), (3, 10.0, 20.0), (4, 10.0, 11.0))
    ]
    assert in_words(found, "one", (1,)) == (
        "with one known: 1 predictions, off by 11% in the median, 11% most; 1 within their "
        "intervals, of ±20% in the median"
    )
    assert in_words(found, "more", range(2, 9)).startswith(
        "with more known: 2 predictions, off by 30% in the median, 50% most; 1 within"
    )
    assert in_words(found[:1], "none", (0,)) == "with none known: no predictions"


def test_what_runs_were_expected_to_take_is_told_beside_what_they_took() -> None:
    words = ("foresight", "--epochs", "1,2", "--suites", "0", "--json")
    first, second = json.loads(headrace("bench", *words).stdout)["runs"]
    assert [each["num_known"] for each in (first, second)] == [0, 1]
    assert (first["predicted_s"], first["error"], first["parts"]) == (None, None, {})
    assert second["error"] == pytest.approx(second["predicted_s"] / second["took_s"] - 1)
    assert second["parts"].keys() == {"pack", "stage", "train", "evaluate", "between"}
    assert sum(took_s for _, took_s in second["parts"].values()) == pytest.approx(second["took_s"])
