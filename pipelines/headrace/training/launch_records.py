"""What driver, nodes and ranks of a training share: the files of a launch, and what is in them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from headrace.files.layout import Entry, Folder, NumberedEntry
from headrace.record import Figures, Record
from headrace.staging.gang_store import Brought
from headrace.staging.peers import PeerGroup

REPORT, LIGHTNING = "script.report", "Lightning's Trainer"
SOURCES = (REPORT, LIGHTNING, "trainer_state.json", "CSV", "TensorBoard")
"""Sources of a script's metrics; an earlier one wins."""


class LaunchFolder(Folder):
    """Files of one launch of all ranks: `parts/launch-<number>/` of the step."""

    stop = Entry("stop")
    """Its presence asks all nodes to stop their ranks."""
    progress = Entry("progress.json")
    """`TrainingProgress`, by rank 0."""
    paused = Entry("paused.json")
    """`Paused`, by rank 0."""
    trained = Entry("trained.json")
    """`TrainingOutcome`, by rank 0."""
    meeting = Entry("meeting")
    """By which the ranks of a single node find each other."""
    launched = Entry("launched")
    """Its presence says that the launcher of all ranks has ended."""
    full_gpu = Entry("full-gpu")
    """Its presence says that a GPU's memory ran out beside a split held there."""
    ready = NumberedEntry("node-{}.json")
    """`NodeReady`, by the node with that index."""
    streamed = NumberedEntry("streamed-{}.json")
    """`Brought`, by the rank."""
    failure = NumberedEntry("failure-{}.json")
    """`RankFailure`, by the rank itself."""
    done = NumberedEntry("done-{}")
    """Its presence says that the rank has done its part."""
    beat = NumberedEntry("beat-{}")
    """Signs of life of a rank."""
    placed = NumberedEntry("placed-{}")
    """Written by a rank's watcher when the launcher has started it."""
    outcome = NumberedEntry("outcome-{}.json")
    """`NodeOutcome` of a rank that a launcher has started, by its watcher."""


class NodeLaunch(Record):
    """What one node is to start."""

    run_folder: str
    """Folder of the run, with recipe and site."""
    step_folder: str
    dataset: str
    """Folder of the packed dataset, on shared storage; empty where the recipe has none."""
    number: int
    """Number of the launch in this step, from 1."""
    node_index: int = 0
    """Number of the node, from 0."""
    node_name: str
    num_nodes: int = 1
    ranks_per_node: int = 1
    host: str
    """Address of this node as other nodes reach it."""
    hosts: tuple[str, ...] = ()
    """Addresses of all nodes, in their order."""
    master_address: str
    """Address of the node with rank 0."""
    master_port: int = 0
    """Port for the rendezvous there."""
    ports: tuple[int, ...] = ()
    """A port of each rank of a script, free on its node; the first is `master_port`."""
    secret: str = ""
    """Begins the names that ranks of several nodes meet by."""
    resume: str | None
    """Checkpoint to go on from; null starts anew."""
    skipped: tuple[str, ...] = ()
    """Files of damaged shards that are left out."""

    stop_at: float | None = None
    """Ranks stop with a checkpoint before this time, seconds since the epoch; null for never."""
    notice: str = ""
    """File that is there when the nodes are about to be taken away; empty for none."""
    at_risk: str = ""
    """File that is there when they may be taken away soon, and says why; empty for none."""
    group: PeerGroup | None = None
    """Nodes that pass shards on to each other while they train; null: each reads alone."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_nodes * self.ranks_per_node

    @property
    def ranks(self) -> range:
        """Ranks of this node."""
        first = self.node_index * self.ranks_per_node
        return range(first, first + self.ranks_per_node)

    @property
    def folder(self) -> LaunchFolder:
        """Files of this launch."""
        return LaunchFolder(Path(self.step_folder) / "parts" / f"launch-{self.number:03d}")

    @property
    def token(self) -> str:
        """Unique to the launch; part of the names of temporary files."""
        return f"{Path(self.step_folder).name}-{self.number}-{self.master_port}"


class NodeReady(Record):
    """A node that has its data; input of its ranks."""

    launch: NodeLaunch
    dataset: str
    """Folder of the dataset on the node; empty if none is staged."""
    fingerprint: str
    at: float = Field(default_factory=time.time)
    """Time at which it had its data, seconds since the epoch."""
    staging_s: float = 0.0
    interface: str | None = None
    """Network interface of the node's address; null to let the library choose."""
    slurm_name: str = ""
    """Slurm's name of the node; empty outside Slurm."""


class Paused(Record):
    """The step at which training stopped because the lease's time is over."""

    step: int
    """Optimizer steps done, all of them in the newest checkpoint."""


class TrainingProgress(Figures):
    """Progress of a training; replaced about every second."""

    epoch: int
    """Epoch under way, from 0."""
    step: int
    steps_per_batch: int = 1
    """More than one when the model steps several optimizers by itself."""
    loss: float | None = None
    """Loss of the newest batch of rank 0; null when it is not finite."""
    samples_per_s: float = 0.0
    """Samples per second of all ranks, since the last report."""
    data_wait: float = 0.0
    """Share of the time that rank 0 has waited for batches, since the last report."""
    total_steps: int | None = None
    """Planned optimizer steps as a script reported them; null if not reported."""
    metrics: dict[str, float] = {}
    """Metrics that the model logged or a script reported last, by name."""
    notes: dict[str, str] = {}
    """What users should know about rank 0's reading, by subject."""
    unit: Literal["steps", "epochs"] = "steps"
    """Unit of `step`; epochs if a script's log has no steps."""
    source: str = ""
    """Source of a script's metrics, of `SOURCES`; empty for a model."""


class FailureKind(str, Enum):
    """Cause of a rank's end; the first in this order is the cause of a launch with several."""

    USER_ERROR = "user_error"
    DATA_ERROR = "data_error"
    OUT_OF_MEMORY = "out_of_memory"
    NO_SPACE = "no_space"
    INTERNAL = "internal"
    PORT_TAKEN = "port_taken"
    STORAGE = "storage"
    KILLED = "killed"
    HUNG = "hung"
    SCRIPT_FAILED = "script_failed"
    CRASHED = "crashed"
    PEER_LOST = "peer_lost"


class RankFailure(Record):
    """Why a rank failed."""

    rank: int
    node: str = ""
    kind: FailureKind
    what: str
    hint: str = ""
    trace: str = ""
    at: float
    """When, seconds since the epoch."""


class NodeOutcome(Record):
    """The end of the ranks of a node."""

    node: str
    stopped: bool
    failures: tuple[RankFailure, ...] = ()
    beats: dict[int, int] = {}
    """Number of signs of life of each rank; a rank with fewer blocks the others."""
    streamed: Brought = Brought()
    """Bytes that its ranks have fetched, and that it has read for other nodes."""
    has_met: bool = True
    """Whether any rank was reached at the port of rank 0; True if it is not known."""


class TrainingOutcome(Figures):
    """Result of a training; written next to the final checkpoint when it is complete."""

    fingerprint: str
    checkpoint: str
    """Final checkpoint; of a script its newest file, or empty."""
    best_checkpoint: str = ""
    """Checkpoint with the best value of `trainer.monitor`; empty without that key."""
    epochs: int
    steps: int
    """Optimizer steps; 0 if a script reported none."""
    world_size: int
    metrics: dict[str, float] = {}
    """Metrics that the model logged last, the mean over ranks."""
    metrics_from: str = ""
    """Source of a script's metrics, of `SOURCES`; empty for a model, and without metrics."""
    weights_xxh3: str = ""
    """XXH3 hash of the final weights, 128 bits, hexadecimal."""
    data_wait: float = 0.0
    """Share of the last launch's time that ranks have waited for batches."""
    notes: dict[str, str] = {}
    """What users should know about rank 0's reading, by subject."""

    def outputs(self, restart_causes: Sequence[str]) -> dict[str, JsonValue]:
        """Return the outputs of the train step, with the cause of each restart."""
        values: dict[str, JsonValue] = self.model_dump(mode="json", exclude={"fingerprint"})
        values["steps"] = self.steps or None
        return {**values, "restarts": len(restart_causes), "restart_causes": [*restart_causes]}
