"""`headrace bench suite` and `foresight`: a few trials and runs, and a peer that is not there."""

from __future__ import annotations

import json
import sys

import pytest

from headrace.errors import StepError
from support.command_line import headrace


@pytest.mark.slow
def test_trials_are_counted_and_a_missing_peer_is_named() -> None:
    answer = json.loads(headrace("bench", "suite", "--trials", "4", "--json").stdout)
    assert (answer["trials"], answer["workers"]) == (4, 2)
    assert answer["seconds_per_trial"]["headrace"] > 0
    with pytest.raises(StepError, match=r"No module named 'ray'\n.*pip install 'ray\[tune\]'"):
        headrace("bench", "suite", "--peers", sys.executable)


@pytest.mark.slow
def test_what_runs_were_expected_to_take_is_told_beside_what_they_took() -> None:
    words = ("foresight", "--epochs", "1,2", "--suites", "0", "--json")
    first, second = json.loads(headrace("bench", *words).stdout)["runs"]
    assert (first["predicted_s"], first["error"], first["parts"]) == (None, None, {})
    assert second["error"] == pytest.approx(second["predicted_s"] / second["took_s"] - 1)
    assert second["parts"].keys() == {"pack", "stage", "train", "evaluate", "between"}
    assert sum(took_s for _, took_s in second["parts"].values()) == pytest.approx(second["took_s"])
