"""Work that lasts ten days: a real training whose clock jumps by days again and again."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from headrace.ledger.ledger import open_ledger
from headrace.runs.costs import run_cost
from headrace.runs.runs import open_run
from headrace.states import FailureClass, StepState
from support.bad_input import make_place
from support.training import weights_here

pytestmark = pytest.mark.slow

NUM_JUMPS, JUMP_S = 5, 2 * 86_400
LIFETIME_DAYS = 6
"""Of a lease: the training needs two of them."""

SOURCE = Path(__file__).parents[1] / "support" / "moved_clock.c"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs the Debian package gcc")
def test_a_training_of_ten_days_ends_with_the_same_weights_and_is_accounted_for(
    headrace_home: Path, no_leftover_processes: None
) -> None:
    """Pains 15, 31: certificates, leases, files in use and costs outlive each jump.

    The clock is moved for all processes: the command, the lease's host, workers and ranks. It
    begins ten days ago, so that no file looks older than it is.
    """
    library, clock = headrace_home / "moved_clock.so", headrace_home / "clock"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE], check=True)
    began = -NUM_JUMPS * JUMP_S
    clock.write_bytes(struct.pack("q", began))
    place = make_place(headrace_home)
    gpu = {"kind": "gang", "ranks_per_node": 2, "lifetime": f"{LIFETIME_DAYS}d"}
    place.write_site(roles={"gpu": gpu | {"price": {"usd_per_node_hour": 1.0}}})
    model = {
        "_target_": "blob_clock.Blob", "notes": str(headrace_home), "clock": str(clock),
        "began": began, "by_s": JUMP_S, "at": list(range(2, 2 + 2 * NUM_JUMPS, 2)), "pause_s": 0.8,
    }  # fmt: skip
    trainer = {"accelerator": "cpu", "max_epochs": 1, "checkpoint_every_steps": 2}
    place.write_recipe("long", model=model, trainer=trainer)
    moved = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(clock)}
    done = place.headrace("run", "long", "--site", "here", **moved)
    assert done.returncode == 0, done.stdout + done.stderr
    record, (_, _, *cut, last) = place.newest()
    assert {each.failure_class for each in cut} == {FailureClass.TIMED_OUT}
    assert last.state is StepState.SUCCEEDED
    recipe = open_run(record.run_id).recipe
    wanted = weights_here(headrace_home / "whole", recipe, str(place.dataset), ranks=2)
    assert last.outputs["weights_xxh3"] == wanted

    usage = open_ledger().usage(record.run_id)
    cost = run_cost(record.run_id)
    hours = NUM_JUMPS * JUMP_S / 3600
    assert hours - JUMP_S / 3600 <= cost.usd < hours + 1, "no lease costs more than its lifetime"
    trained = [each for each in usage if each.kind == "train"]
    assert all(each.train_s <= each.node_s for each in trained), "by the clock that is never set"
