"""A suite on a pool of a real Slurm, one of whose jobs is cancelled while trials run there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.states import StepState
from support.command_line import headrace
from support.held_suite import HeldSuite
from support.paced_run import Waiting, until
from support.slurm_dev import DevSlurm

pytestmark = [pytest.mark.slow]

_HELD, _GANG = (1, 2, 3, 4), 5
"""Trials that wait in their third step to be let go; and the last, which takes two nodes."""


def test_trials_go_on_elsewhere_when_the_job_of_their_node_is_cancelled(
    headrace_home: Path, slurm: DevSlurm, no_leftover_processes: None
):
    """pains 22, 37: each GPU has one trial, each trial one success, and all of it is priced."""
    notes = {number: headrace_home / f"notes-{number}" for number in (*_HELD, _GANG)}
    for folder in notes.values():
        folder.mkdir()
    points = [{"model.notes": str(notes[number]), "model.fate": "hold"} for number in _HELD]
    suite = HeldSuite(
        headrace_home,
        {
            "backend": "slurm",
            "kind": "pool",
            "nodes": 2,
            "lifetime": 600,
            "price": {"usd_per_gpu_hour": 1800},
            "batch": {"interface": "lo", "poll": 0.2, "gpus_per_node": 2},
        },
        {
            "data": {"global_batch_size": 16},
            "model": {"_target_": "trial_models.TrialModel", "notes": str(notes[_GANG])},
            "trainer": {"max_epochs": 1, "checkpoint_every_steps": 1},
            "suite": {
                "objectives": [{"metric": "loss"}],
                "points": [*points, {"train.nodes": 2, "train.ranks_per_node": 1}],
            },
        },
    )
    lost: list[int] = []

    def are_held() -> bool:
        return all((notes[number] / "held-3").exists() for number in _HELD)

    def disturb() -> Waiting:
        yield from until(are_held)
        begun = suite.begun()
        machine = begun[1].machines[0]
        lost.extend(number for number in _HELD if begun[number].machines == (machine,))
        parts = {
            number: json.loads((notes[number] / "part-0.1.json").read_text()) for number in _HELD
        }
        for numbers in (lost, sorted({*_HELD} - {*lost})):
            assert [parts[number]["CUDA_VISIBLE_DEVICES"] for number in numbers] == ["0", "1"]
            first, second = (set(parts[number]["cpus"]) for number in numbers)
            assert not first & second
        for number in lost:
            (notes[number] / "held-3").unlink()
        (job_id,) = slurm.queue(f"--nodelist={machine}")
        slurm.run("scancel", job_id)
        yield from until(lambda: are_held() and job_id not in slurm.queue())
        shown = headrace("suite", "show", suite.run.run_id)
        assert "running (2)" in shown.stdout
        for number in _HELD:
            (notes[number] / "go-3").touch()

    suite.go(disturb())
    assert slurm.queue() == []
    ends = suite.ends()
    done = [end for end in ends if end.state is StepState.SUCCEEDED]
    assert sorted(end.number for end in done) == [*_HELD, _GANG]
    assert sorted(end.number for end in ends if end.state is StepState.LOST) == lost
    (gang,) = [end for end in done if end.number == _GANG]
    assert len(set(gang.machines)) == gang.usage.nodes == 2
    usage = suite.usage()
    for (number, attempt), row in usage.items():
        assert (row.node_kind, row.usd_per_hour) == ("slurm 2 x GPU", 3600.0)
        assert row.usd == pytest.approx(row.node_s)  # a dollar a second
        assert row.gpus == (4 if number == _GANG else 1)
        assert row.usd_failed == (row.usd if (number, attempt) in [(n, 1) for n in lost] else 0)
        assert (row.queue_s > 0) or attempt == 2
    shown = json.loads(headrace("cost", suite.run.run_id, "--by", "trial", "--json").stdout)
    told = {each["trial"]: each["usd"] for each in shown}
    for number in lost:
        assert told[str(number)] == pytest.approx(usage[number, 1].usd + usage[number, 2].usd)
    (whole,) = json.loads(headrace("cost", suite.run.run_id, "--by", "suite", "--json").stdout)
    status = json.loads(headrace("status", suite.run.run_id, "--json").stdout)
    assert whole["usd"] == pytest.approx(status["cost"]["usd"])
