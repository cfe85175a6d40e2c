"""The files of one launch of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LaunchFolder:
    """Files of one launch of all ranks: `parts/launch-<number>/` of the step."""

    path: Path

    @property
    def stop(self) -> Path:
        """Its presence asks all nodes to stop their ranks."""
        return self.path / "stop"

    @property
    def progress(self) -> Path:
        """How far training is, by rank 0."""
        return self.path / "progress.json"

    @property
    def paused(self) -> Path:
        """Where training stopped since the lease's time is over, by rank 0."""
        return self.path / "paused.json"

    def staged(self, node_index: int) -> Path:
        """What a node has staged while its ranks trained."""
        return self.path / f"staged-{node_index}.json"

    def streamed(self, rank: int) -> Path:
        """What a rank has fetched while it trained."""
        return self.path / f"streamed-{rank}.json"

    def spec(self, rank: int) -> Path:
        """Input of a rank."""
        return self.path / f"rank-{rank}.json"

    def failure(self, rank: int) -> Path:
        """Why a rank failed, by itself."""
        return self.path / f"failure-{rank}.json"

    def beat(self, rank: int) -> Path:
        """Sign of life of a rank."""
        return self.path / f"beat-{rank}"

    def ready(self, node_index: int) -> Path:
        """What a node has ready for its ranks; for a launcher of all ranks."""
        return self.path / f"node-{node_index}.json"

    def placed(self, rank: int) -> Path:
        """Written by a rank's watcher when the launcher has started it."""
        return self.path / f"placed-{rank}"

    def outcome(self, rank: int) -> Path:
        """How a rank that a launcher has started ended, by its watcher."""
        return self.path / f"outcome-{rank}.json"

    @property
    def meeting(self) -> Path:
        """By which the ranks of a single node find each other."""
        return self.path / "meeting"

    @property
    def trained(self) -> Path:
        """What training gave, by rank 0; it counts once the data it came from is known as sound."""
        return self.path / "trained.json"

    @property
    def round(self) -> Path:
        """The newest round in which all nodes look at their data again, by the driver."""
        return self.path / "round.json"

    def sound(self, node_index: int) -> Path:
        """The newest round that a node's data has passed."""
        return self.path / f"sound-{node_index}.json"

    @property
    def launched(self) -> Path:
        """Its presence says that the launcher of all ranks has ended."""
        return self.path / "launched"
