"""Runs that have ended, as the ledger and their folders tell of them; nothing is run."""

from __future__ import annotations

from typing import Any

from headrace.ledger.ledger import open_ledger
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.steps.history import HistoryRow, training_file
from support.runs import attempt_row_of, lease_on_disk, make_run

STEPS = {"pack": 2.0, "stage": 1.0, "evaluate": 4.0}
"""Seconds of the steps of such a run, beside its training."""


def step_ended(run: Run, step: str, lease_id: str, seconds: float, **changes: Any) -> None:
    """Enter an attempt at a step that took so long, and succeeded unless the changes differ."""
    values = {"state": StepState.SUCCEEDED, "started_at": 1000.0, "finished_at": 1000.0 + seconds}
    attempt_row_of(run, step, lease_id, **{**values, **changes})


def past_run(
    epochs: int,
    *overrides: str,
    batch_s: float = 0.5,
    start_s: float = 10.0,
    first_s: float | None = None,
    packed_s: float | None = None,
    batch: int = 64,
    steps_a_batch: int = 1,
    **request: Any,
) -> Run:
    """A run of 640 to 700 samples an epoch, that took 13 s besides its steps.

    Its first batch may take longer, and it may find its dataset packed. `request` has further
    fields of its request.
    """
    words = (f"trainer.max_epochs={epochs}", f"data.global_batch_size={batch}", *overrides)
    run = make_run(overrides=words, **request)
    leases = {"pack": lease_on_disk(run, "cpu")}
    gang = lease_on_disk(run, "gpu")
    first_s = batch_s if first_s is None else first_s
    num_batches = 640 // batch * epochs
    loop_s = first_s + (num_batches - 1) * batch_s
    pack_s = STEPS["pack"] if packed_s is None else packed_s
    seconds = {**STEPS, "pack": pack_s, "train": start_s + loop_s}
    rows = [
        HistoryRow(at=500.0, launch=1, starts=True, epoch=0, step=0),
        HistoryRow(
            at=500.0 + first_s, launch=1, epoch=0, step=steps_a_batch, samples_per_s=batch / first_s
        ),
        HistoryRow(at=500.0 + loop_s, launch=1, epoch=epochs - 1, step=num_batches * steps_a_batch),
    ]
    training_file(run.folder).parent.mkdir()
    training_file(run.folder).write_text("".join(f"{row.model_dump_json()}\n" for row in rows))
    for step, took_s in seconds.items():
        outputs: dict[str, Any] = {
            "pack": {"num_samples": 1000, "num_bytes": 5e6,
                     "reused": packed_s is not None}, "evaluate": {"num_samples": 30},
        }.get(step, {})  # fmt: skip
        step_ended(run, step, leases.get(step, gang), took_s, number=None, outputs=outputs)
    created_at = open_ledger().run(run.run_id).created_at
    open_ledger().finish_run(
        run.run_id, StepState.SUCCEEDED, created_at + sum(seconds.values()) + 13
    )
    return run
