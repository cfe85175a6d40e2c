"""What all batch systems have in common."""

from __future__ import annotations

import pytest

from headrace.batch.commands import CommandResult
from headrace.batch.findings import hours
from headrace.batch.job_records import JobState
from headrace.batch.slurm import state_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "exit code 1"),
        ("  \n", "exit code 1"),
        ("slurm_load_jobs error: Unable to contact", "Unable to contact"),
        ("sbatch: error: Bad qos\nsbatch: error: Denied\n", "Bad qos; Denied"),
        ("error: a\n\n  b  \n", "a; b"),
    ],
)
def test_words_of_a_command_in_one_line(text: str, words: str):
    assert CommandResult(1, "", text).words == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "no limit"), (90.0, "1.5 min"), (3599.0, "60 min"), (3600.0, "1 h"), (5400.0, "1.5 h")],
)
def test_times_for_people(seconds: float | None, words: str):
    assert hours(seconds) == words


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("RUNNING", JobState.RUNNING),
        ("CANCELLED by 1000", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("", JobState.RUNNING),
        ("HIBERNATING", JobState.RUNNING),
    ],
)
def test_a_state_that_nobody_knows_is_no_proof_of_an_end(text: str, state: JobState):
    assert state_of(text) is state
