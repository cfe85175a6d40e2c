"""What interruptions of a training cost on average, and what `headrace plan` says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.ledger.ledger import open_ledger
from headrace.recipe.backend import Interruptions
from headrace.recipe.load import load_recipe
from headrace.recipe.recipe import Recipe
from headrace.states import LeaseState, StepState
from headrace_foresight.lifetime import Pace, expected_loss, loss_in_words
from support.command_line import headrace
from support.factories import built_in, write_site
from support.runs import attempt_row_of, lease_on_disk, make_run

_EC2: dict[str, Any] = {"region": "x", "image": "ami-1", "instance_types": ["g5.xlarge"]}
_EC2 |= {"markets": ["spot"]}


_NODES = 2
_ONE = Interruptions(per_hour=0.05, source="somebody")


def _recipe(*changes: str) -> Recipe:
    return load_recipe("digits", ("trainer.checkpoint_every_steps=100", *changes))


@pytest.mark.parametrize(
    ("changes", "pace", "steps", "seconds"),
    [
        ((), Pace(step_s=3.0, start_s=120.0), 50.0, 270.0),
        (("trainer.checkpoint_every_steps=20",), Pace(step_s=3.0, start_s=120.0), 10.0, 150.0),
        (("trainer.max_steps=30",), Pace(step_s=3.0, start_s=120.0), 15.0, 165.0),
        ((), Pace(start_s=120.0), 50.0, 120.0),
        ((), Pace(step_s=3.0), 50.0, 450.0),
    ],
)
def test_half_of_what_lies_between_two_checkpoints_is_done_again(
    changes: tuple[str, ...], pace: Pace, steps: float, seconds: float
):
    """pains 23."""
    found = expected_loss(_recipe(*changes), _NODES, _ONE, pace)
    assert (found.steps, found.seconds) == (steps, seconds)


def test_all_nodes_of_a_gang_are_interrupted_when_one_is():
    pace = Pace(step_s=3.0, start_s=120.0)
    found = expected_loss(_recipe(), _NODES, _ONE, pace)
    assert found.per_hour == pytest.approx(0.1)
    assert found.share == pytest.approx(27 / 3627)  # 0.1 x 270 s for each hour of work


def test_the_line_says_what_is_known_and_what_is_assumed():
    told = loss_in_words(_recipe(), _NODES, _ONE, Pace(step_s=3.0, start_s=120.0))
    assert told == (
        "spot: an interruption costs a start of 0:02:00 and, if its notice does not come in "
        "time, 0:02:30: 50 steps (half of trainer.checkpoint_every_steps, 100); 0.1 "
        "interruptions per hour of 2 nodes (somebody) take 0.74 % of the time"
    )
    often = Interruptions(per_hour=1.0, source="somebody")
    told = loss_in_words(_recipe("trainer.max_steps=30"), _NODES, often, Pace())
    assert "a start of 0:05:00 (assumed) and" in told
    assert "15 steps (half of trainer.max_steps, 30: no checkpoint comes before)" in told
    assert "2 interruptions per hour of 2 nodes (somebody) take at " in told
    assert told.endswith("take at least 14 % of the time")


def test_what_a_script_loses_is_its_own():
    recipe = _recipe()
    train = recipe.train.model_copy(update={"script": "train.py"})
    recipe = recipe.model_copy(update={"model": None, "train": train})
    pace = Pace(step_s=3.0, start_s=120.0)
    assert expected_loss(recipe, _NODES, _ONE, pace).seconds == 120.0
    assert "two checkpoints of the script" in loss_in_words(recipe, _NODES, _ONE, pace)


def test_plan_reckons_with_earlier_runs(headrace_home: Path):
    gang = {"backend": "ec2", "kind": "gang", "nodes": 2, "ec2": _EC2}
    write_site(headrace_home, "spot", roles=built_in("sites", "laptop")["roles"] | {"gpu": gang})
    run = make_run(site="spot")
    lease_id = lease_on_disk(run, "gpu")
    record = open_ledger().latest_lease(f"{run.run_id}/gpu")
    ready_at = record.created_at + 90.0
    open_ledger().set_lease_state(lease_id, LeaseState.READY, ready_at=ready_at)
    values = {"state": StepState.SUCCEEDED, "started_at": 1000.0, "finished_at": 1200.0}
    attempt_row_of(run, "train", lease_id, **values, outputs={"steps": 100})
    shown = headrace("plan", "digits", "--site", "spot", "trainer.checkpoint_every_steps=100")
    assert shown.exit_code == 0, shown.output
    (line,) = [each for each in shown.stdout.splitlines() if "spot: " in each]
    assert "a start of 0:01:30 and" in line
    assert "0:01:40: 50 steps" in line
