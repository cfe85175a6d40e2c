"""Usage of machines by an attempt at a step or a trial.

Nodes write it, so it imports no database; the ledger has a column for each field.
"""

from __future__ import annotations

from pydantic import Field

from headrace.record import Record


class AttemptUsage(Record):
    """Use of an attempt's time, and load of its machines; null: unknown."""

    node: str = ""
    """Node it ran on; the first of several."""
    nodes: int = Field(default=1, ge=1)
    gpus: float = 0.0
    """GPUs that it held on all nodes; a fraction of one that trials share."""
    cpus: float = 0.0
    """CPUs that it held on all nodes."""
    start_s: float | None = None
    """Seconds until the first batch: processes, imports, rendezvous, restoring a checkpoint."""
    staging_s: float | None = None
    """Seconds of staging shards onto the node."""
    data_wait_s: float | None = None
    """Seconds in which training waited for data."""
    train_s: float | None = None
    """Seconds of training, with waiting for data."""
    evaluate_s: float | None = None
    samples: int | None = None
    """Samples trained on, every epoch counted, or packed."""
    stored_bytes: int | None = None
    """Bytes that it added to packed datasets."""
    fetched_bytes: int | None = None
    """Bytes that it read from an object store."""
    cpu_use: float | None = None
    """Mean share of the CPUs of its nodes that was busy, 0 to 1."""
    gpu_use: float | None = None
    """Mean share of time in which its GPUs were busy, 0 to 1."""
    memory_bytes: int | None = None
    """Most memory of all its processes together."""
    gpu_memory_bytes: int | None = None
    """Most memory of one of its GPUs."""
    energy_wh: float | None = None
    """Watt-hours of its GPUs in training."""
    cpu_energy_wh: float | None = None
    """Watt-hours of the CPUs of its nodes in training; null if their counters cannot be read."""
