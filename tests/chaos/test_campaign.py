"""Every kind of process of real runs is disturbed, and nothing shows.

A longer campaign: `HEADRACE_CHAOS_RUNS=20 HEADRACE_CHAOS_SEED=7 make chaos
ARGS="-k test_runs_end"`; one of its trials again: `HEADRACE_CHAOS_TRIAL=13` instead.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

from chaos.campaign.campaign import Campaign, Reference
from chaos.campaign.ground import LOST_AFTER_S, Ground
from chaos.campaign.processes import Processes
from chaos.campaign.trials import TARGETS, draw

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(86400)]

SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", "214"))
"""Without a choice one whose first trials of each role fall into all phases, half of them halts."""
RUNS = int(os.environ.get("HEADRACE_CHAOS_RUNS", "0"))
"""Trials of a longer campaign; 0: the first of each role."""
TRIAL = os.environ.get("HEADRACE_CHAOS_TRIAL")
"""Number of the only trial; None: all."""

DISTURBED_ELSEWHERE = {"command", "rank", "worker", "predictor"}
"""Killed by `test_interrupted_commands.py`, `slurm/test_gangs.py`, `test_stage_and_evaluate.py`."""


def first_of_each_role() -> list[int]:
    """Numbers of the trials that are the first to aim at each other kind of process."""
    first: dict[str, int] = {}
    for number in count():
        first.setdefault(draw(SEED, number, LOST_AFTER_S).role, number)
        if len(first) == len({role for _phase, role in TARGETS}):
            break
    return [number for role, number in first.items() if role not in DISTURBED_ELSEWHERE]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("chaos"))


@pytest.fixture(scope="module")
def reference(ground: Ground) -> Reference:
    """The run that all others are compared with."""
    return Campaign(ground=ground, seed=SEED, numbers=()).reference()


def test_runs_end_as_if_nothing_had_been_done_to_them(ground: Ground, reference: Reference):
    numbers = [int(TRIAL)] if TRIAL else list(range(RUNS)) or first_of_each_role()
    campaign = Campaign(ground=ground, seed=SEED, numbers=numbers, jobs=2)
    outcomes = list(campaign.outcomes(reference))
    unwell = [outcome.model_dump_json(indent=1) for outcome in outcomes if not outcome.is_well]
    assert not unwell, "\n".join(unwell)
    assert len(outcomes) == len(numbers)
    # what lives for less than a second may be gone in time
    assert sum(outcome.hit is not None for outcome in outcomes) >= len(numbers) - 2 - RUNS // 5


@pytest.mark.nightly
def test_a_run_that_does_not_end_in_time_is_told_and_ended(ground: Ground, reference: Reference):
    campaign = Campaign(ground=ground, seed=SEED, numbers=(0,), limit_s=3.0)
    (outcome,) = campaign.outcomes(reference)
    assert outcome.hung == "waited in vain for `headrace run`"
    assert any(line.startswith("command ") for line in outcome.left)
    home: Path = ground.folder / "trial-0"
    assert not Processes(home).living()


@pytest.mark.nightly
def test_another_result_is_told(ground: Ground, reference: Reference):
    known = reference.result
    extra, *files = sorted(known.files)
    result = known.model_copy(update={"weights": "0" * 32, "files": frozenset(files)})
    other = reference.model_copy(update={"result": result})
    number = first_of_each_role()[0]
    (outcome,) = Campaign(ground=ground, seed=SEED, numbers=(number,)).outcomes(other)
    assert outcome.wrong == (f"weights: {known.weights}, not {result.weights}",)
    assert outcome.left == (f"file {extra}",)
    assert outcome.hit is not None
    assert (ground.folder / f"trial-{number}").exists()
