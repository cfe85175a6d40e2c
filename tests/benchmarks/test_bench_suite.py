"""`headrace bench suite`: a few trivial trials, and a peer that is not there."""

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
