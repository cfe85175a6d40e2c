"""Trainings whose batches worker processes make."""

from __future__ import annotations

import pytest

from support.training import blob_step, events_of, train_here, trained

pytestmark = pytest.mark.usefixtures("no_leftover_processes")


def jitter(workers, **options):
    transform = {"_target_": "blob_samples.Frail", "std": 0.5, **options}
    return {"workers": workers, "sample_transforms": [transform]}


def test_weights_are_those_of_threads_also_after_a_worker_was_killed(tmp_path, dataset):
    outputs = {}
    for name, workers, options in (
        ("threads", 0, {}),
        ("processes", 2, {}),
        ("killed", 3, {"notes": str(tmp_path), "dies_at": 41}),
    ):
        step = blob_step(tmp_path / name, data=jitter(workers, **options))
        outputs[name] = train_here(step, dataset)
        found = [event["batches"] for event in events_of(step, "notes")]
        assert step.current.phase.endswith(f"/2; batches: {found[-1]}" if workers else "/2")
        assert set(found) == ({f"made by {workers} processes"} if workers else set())
    assert len({each["weights_xxh3"] for each in outputs.values()}) == 1
    assert trained(tmp_path / "killed") == trained(tmp_path / "threads")
    assert outputs["processes"]["restarts"] == 0
    (cause,) = outputs["killed"]["restart_causes"]
    assert "The worker" in cause
    assert "SIGKILL" in cause
    assert "data.workers" in cause
