"""Launches all ranks together, and again from the last checkpoint when one died."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from headrace.clusters.fleet import Fleet, Node
from headrace.data.streaming import in_turn
from headrace.errors import DataError, HeadraceError, LeaseEndsError, WorkerLostError
from headrace.files.atomic import read_record, write_text
from headrace.staging.gang_store import Brought
from headrace.staging.peer_group import PeerGroup, groups_of
from headrace.steps.context import StepContext
from headrace.training import checkpoints
from headrace.training.data_watch import Rounds
from headrace.training.failures import PortTakenError, verdict
from headrace.training.node import run_node
from headrace.training.records import (
    LaunchFolder,
    NodeLaunch,
    NodeOutcome,
    NodeStaged,
    Paused,
    TrainingOutcome,
    TrainingProgress,
)

_MAX_PORT_CLASHES = 5
_STOPPING_S = 5.0
_SECRET_BYTES = 32


class Gang:
    """All ranks of a training on all nodes.

    Args:
        context: The step.
        fleet: The lease's nodes.
        size: Nodes, and ranks on each.
        dataset: Folder or URL of the packed dataset.
        follow: Called with each progress report of rank 0.
        skipped: Files of damaged shards that are left out.

    Attributes:
        trained: What training gave; None for a script, and before it is done.
        staged: What nodes have staged while ranks trained.
        streamed: What nodes have fetched during the last launch, by name.
    """

    def __init__(
        self,
        context: StepContext,
        fleet: Fleet,
        size: tuple[int, int],
        dataset: str,
        follow: Callable[[TrainingProgress | None], None],
        skipped: Collection[str] = (),
    ) -> None:
        self._context = context
        self._fleet = fleet
        self._num_nodes, self._ranks_per_node = size
        self._dataset = dataset
        self._follow = follow
        self._skipped = tuple(sorted(skipped))
        self._number = 0
        self._rounds = Rounds(context.run_folder)
        self.trained: TrainingOutcome | None = None
        self.staged: list[NodeStaged] = []
        self.streamed: dict[str, Brought] = {}

    def run(self) -> list[str]:
        """Run all ranks to their end; launch them again when one died, not when user code failed.

        Returns:
            Why they were launched again, each time.

        Raises:
            HeadraceError: Training cannot go on, or ranks died too often.
        """
        left = self._damage()  # found for an earlier driver
        if isinstance(left, DataError):
            raise left
        causes: list[str] = []
        clashes = 0
        while (error := self._attempt()) is not None:
            if isinstance(error, PortTakenError) and clashes < _MAX_PORT_CLASHES:
                clashes += 1
                continue
            if not isinstance(error, WorkerLostError):
                raise error
            if len(causes) >= self._context.recipe.train.max_restarts:
                raise WorkerLostError(
                    f"{error.what} (after {len(causes)} restarts of all ranks)", error.hint
                ) from error
            causes.append(error.what)
            self._context.restarted(error.what)
        return causes

    def _attempt(self) -> HeadraceError | None:
        try:
            error = verdict(self._launch())
        except WorkerLostError as lost:
            error = lost
        return self._damage(error) or error

    def _damage(self, error: HeadraceError | None = None) -> HeadraceError | None:
        """Go back to the newest checkpoint from sound data, if nodes have found damage.

        Gives what to tell of it and of how the launch has ended; None without damage.
        """
        is_script = self._context.recipe.train.script is not None
        found = self._rounds.settle(goes_back=not is_script)
        step = self._rounds.sound_step
        for each in found:
            self._context.event("damaged_data", **each.model_dump(), sound_step=step)
        if not found:
            return None
        shards = "; ".join(f"{each.node}: {', '.join(each.files)}" for each in found)
        what = f"Staged shards changed after they were verified ({shards})"
        what = f"{what}; {error.what}" if error is not None else what
        if is_script:
            return DataError(
                f"{what}. The script may have trained on them",
                "They are staged anew. Remove those of its checkpoints that may be newer than the "
                f"damage, in {self._context.run_folder.checkpoints}, and resume the run.",
            )
        where = f"step {step}" if step else "the start"
        return WorkerLostError(
            f"{what}; training goes back to {where}", "They are staged anew; look at the node."
        )

    def _launch(self) -> list[NodeOutcome]:
        role = self._context.site.roles[self._context.recipe.train.role]
        self._follow(None)
        nodes = self._fleet.nodes(self._num_nodes, role.start_timeout, check=self._context.check)
        folder = self._next_folder()
        resume = self._resume()
        if self._context.recipe.stage.verify:
            self._rounds.begin(folder, self._num_nodes, resume)
        launches = self._launches(nodes, resume, self._groups(nodes, folder))
        self._context.event(
            "launch", number=self._number, nodes=[node.name for node in nodes], resume=resume
        )

        def check() -> None:
            self._note_staged(folder)
            self._rounds.look()
            self._follow(read_record(folder.progress, TrainingProgress))

        try:
            outcomes = self._fleet.on_nodes(
                run_node, [(launch,) for launch in launches], nodes, check=check
            )
        finally:
            write_text(folder.stop, "the launch is over")
            self._note_staged(folder)
        paused = read_record(folder.paused, Paused)
        if paused is not None:
            raise LeaseEndsError(
                f"Training stopped after step {paused.step}, just before the time of lease "
                f"{self._context.lease_folder.lease_id} was over",
                "It goes on from there in another lease.",
            )
        if any(outcome.stopped for outcome in outcomes):
            self._context.check()  # nodes may have seen a cancel before this process did
        self._note_streamed(outcomes)
        self.trained = read_record(folder.trained, TrainingOutcome)
        return outcomes

    def _note_staged(self, folder: LaunchFolder) -> None:
        if not self._context.recipe.stage.overlap:
            return
        for index in range(self._num_nodes):
            record = read_record(folder.staged(index), NodeStaged)
            if record is not None and record not in self.staged:
                self.staged.append(record)
                self._context.event("staged_meanwhile", **record.model_dump())

    def _note_streamed(self, outcomes: Sequence[NodeOutcome]) -> None:
        self.streamed = {
            outcome.node: outcome.streamed for outcome in outcomes if outcome.streamed != Brought()
        }
        for node, streamed in self.streamed.items():
            self._context.event("streamed", node=node, **streamed.model_dump())

    def _groups(self, nodes: Sequence[Node], folder: LaunchFolder) -> list[PeerGroup | None]:
        """Who takes shards from whom while training runs."""
        recipe = self._context.recipe
        passes_on = recipe.stage.partial and recipe.train.script is None
        mode = recipe.stage.peers if passes_on and in_turn(recipe.data) else "never"
        return groups_of(folder.path, [node.host for node in nodes], mode)

    def _next_folder(self) -> LaunchFolder:
        while True:
            self._number += 1
            folder = self._context.folder.parts / f"launch-{self._number:03d}"
            with suppress(FileExistsError):  # an earlier driver of this step used the number
                folder.mkdir(parents=True)
                return LaunchFolder(folder)

    def _resume(self) -> str | None:
        folder = self._context.run_folder.checkpoints
        folder.mkdir(parents=True, exist_ok=True)
        if self._context.recipe.train.script is not None:
            return None  # a script finds its own
        checkpoints.remove_partial(folder)
        newest = checkpoints.newest_whole(folder)
        return str(newest) if newest is not None else None

    def _launches(
        self, nodes: Sequence[Node], resume: str | None, groups: Sequence[PeerGroup | None]
    ) -> list[NodeLaunch]:
        first, ends_at = nodes[0], self._context.ends_at
        secret = secrets.token_hex(_SECRET_BYTES)
        port = 0
        if self._num_nodes * self._ranks_per_node > 1:
            port = self._fleet.call(first, free_port, first.host)
        return [
            NodeLaunch(
                run_folder=str(self._context.run_folder.path),
                step_folder=str(self._context.folder.path),
                dataset=self._dataset,
                number=self._number,
                node_index=index,
                node_name=node.name,
                num_nodes=self._num_nodes,
                ranks_per_node=self._ranks_per_node,
                host=node.host,
                master_address=first.host,
                master_port=port,
                secret=secret,
                resume=resume,
                stop_at=None if ends_at is None else ends_at - _STOPPING_S,
                skipped=self._skipped,
                group=group,
            )
            for index, (node, group) in enumerate(zip(nodes, groups, strict=True))
        ]


def free_port(address: str) -> int:
    """A port of this machine that nobody listens on just now."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        return int(listener.getsockname()[1])
