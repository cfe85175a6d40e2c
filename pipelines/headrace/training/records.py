"""Records that driver, nodes and ranks of a training share as JSON files or Dask results."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from pydantic import JsonValue

from headrace.record import Figures, Record
from headrace.storage.peer_group import PeerGroup
from headrace.training.launch_folder import LaunchFolder


class NodeLaunch(Record):
    """What one node is to start."""

    run_folder: str
    """Folder of the run, with recipe and site."""
    step_folder: str
    """Folder of the step."""
    dataset: str
    """Folder of the packed dataset, on shared storage."""
    number: int
    """Number of the launch in this step, from 1."""
    node_index: int
    """Number of the node, from 0."""
    node_name: str
    """Name of the node."""
    num_nodes: int
    """Nodes that train."""
    ranks_per_node: int
    """Ranks on each node."""
    host: str
    """Address of this node as other nodes reach it."""
    master_address: str
    """Address of the node with rank 0."""
    master_port: int
    """Port for the rendezvous there."""
    secret: str = ""
    """Begins the names that ranks of several nodes meet by."""
    resume: str | None
    """Checkpoint to go on from; null starts anew."""
    skipped: tuple[str, ...] = ()
    """Files of damaged shards that are left out."""

    stop_at: float | None = None
    """Ranks stop with a checkpoint before this time, seconds since the epoch; null for never."""
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


class NodeReady(Record):
    """A node that has its data, and waits for the launcher of all ranks."""

    launch: NodeLaunch
    """What it is to start."""
    dataset: str
    """Folder of the dataset on the node."""
    interface: str | None = None
    """Network interface of the node's address; null to let the library choose."""
    slurm_name: str = ""
    """Slurm's name of the node; empty outside Slurm."""


class NodeStaged(Record):
    """What a node staged while its ranks trained, written when the last shard was in."""

    node: str
    """Name of the node."""
    tier: str
    """Name of the tier."""
    num_bytes: int
    """Bytes of the copy."""
    copied_bytes: int
    """Bytes that came meanwhile."""
    seconds: float
    """Time from the first look to the last shard."""
    bytes_per_s: float
    """Bytes that came a second."""


class Streamed(Record):
    """What was fetched while ranks trained, because the node does not hold it."""

    source_bytes: int = 0
    """From where the dataset lies."""
    peer_bytes: int = 0
    """From other nodes."""

    def __add__(self, other: Streamed) -> Streamed:
        """Both."""
        return Streamed(
            source_bytes=self.source_bytes + other.source_bytes,
            peer_bytes=self.peer_bytes + other.peer_bytes,
        )


class RankSpec(Record):
    """Input of `python -m headrace.training.rank`."""

    run_folder: str
    """Folder of the run, with recipe and site."""
    launch_folder: str
    """Folder of the launch."""
    token: str
    """Unique to the launch; part of the names of temporary files."""
    dataset: str
    """Folder of the dataset on this node."""
    source: str
    """Folder or URL of the packed dataset, for shards that are not on this node."""
    skipped: tuple[str, ...] = ()
    """Files of damaged shards that are left out."""
    arriving: bool = False
    """Whether the folder on this node is still being filled from there."""
    group: PeerGroup | None = None
    """Nodes that hold shards which are not on this one; null: they come from the source."""
    fingerprint: str
    """Hash of recipe and dataset, kept with the outcome."""
    rank: int
    """Rank, from 0."""
    world_size: int
    """Number of ranks."""
    num_nodes: int
    """Nodes that train."""
    meeting: str
    """Where the ranks meet: a file for those of one node, address and port of rank 0 for others."""
    secret: str = ""
    """Begins the names by which they meet at a port."""
    resume: str | None
    """Checkpoint to go on from; null starts anew."""
    stop_at: float | None = None
    """Training stops with a checkpoint before this time, seconds since the epoch; null: never."""


class Paused(Record):
    """Where training stopped since the lease's time is over."""

    step: int
    """Optimizer steps done, all of them in the newest checkpoint."""


class TrainingProgress(Record):
    """How far training is; replaced about every second."""

    epoch: int
    """Epoch under way, from 0."""
    step: int
    """Optimizer steps done."""
    loss: float | None = None
    """Loss of the newest batch of rank 0; null when it is not finite."""
    samples_per_s: float = 0.0
    """Samples trained a second over all ranks, since the last report."""
    data_wait: float = 0.0
    """Share of the time that rank 0 has waited for batches, since the last report."""


class FailureKind(str, Enum):
    """What ended a rank; the first in this order stands for a launch in which several failed."""

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
    """The rank."""
    node: str = ""
    """Its node."""
    kind: FailureKind
    """What ended it."""
    what: str
    """What happened."""
    hint: str = ""
    """What to do."""
    trace: str = ""
    """Trace of user code."""
    at: float
    """When, seconds since the epoch."""


class NodeOutcome(Record):
    """How the ranks of a node ended."""

    node: str
    """Name of the node."""
    stopped: bool
    """Whether they were asked to stop."""
    failures: tuple[RankFailure, ...] = ()
    """Failures of its ranks."""
    beats: dict[int, int] = {}
    """Signs of life that each rank has given; the one behind the others holds them up."""
    streamed: Streamed = Streamed()
    """What its ranks have fetched, and what it has read for other nodes."""


class TrainingOutcome(Figures):
    """What training gave; written when it is complete, next to the final checkpoint."""

    fingerprint: str
    """Hash of recipe and dataset."""
    checkpoint: str
    """Final checkpoint; for scripts the newest file they left, or empty."""
    epochs: int
    """Epochs trained."""
    steps: int
    """Optimizer steps."""
    world_size: int
    """Ranks of the last launch."""
    metrics: dict[str, float] = {}
    """What the model logged last, the mean over ranks."""
    weights_xxh3: str = ""
    """XXH3 hash of the final weights, 128 bits, hexadecimal."""
    data_wait: float = 0.0
    """Share of the last launch's time that ranks have waited for batches."""

    def outputs(self, restart_causes: Sequence[str]) -> dict[str, JsonValue]:
        """Outputs of the train step.

        Args:
            restart_causes: Why all ranks were started again, each time.
        """
        values: dict[str, JsonValue] = self.model_dump(mode="json", exclude={"fingerprint"})
        causes = list(restart_causes)
        return {**values, "restarts": len(causes), "restart_causes": [*causes]}
