"""Writes down when the nodes of a lease were there: a plugin of its scheduler, in the host."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from distributed import Scheduler, SchedulerPlugin

from headrace.clusters.node_marks import NodeLine
from headrace.files.layout import LeaseFolder
from headrace.files.lines import append_line

logger = logging.getLogger(__name__)


class NodeTimes(SchedulerPlugin):  # type: ignore[misc]
    """Adds a line to `nodes.jsonl` for each change of a node.

    Args:
        folder: The lease.
        held: Names of nodes that it holds as long as it lasts, whether their workers are there.
        since: When these were there, seconds since the epoch.
        asked: When the job of a node was submitted; None for a node without a job of its own,
            which ends with its worker.
    """

    def __init__(
        self,
        folder: LeaseFolder,
        held: Iterable[str] = (),
        since: float = 0.0,
        asked: Callable[[str], float | None] = lambda _name: None,
    ) -> None:
        self._folder = folder
        self._held = frozenset(held)
        self._asked = asked
        self._there: set[str] = set()
        self._names: dict[str, str] = {}
        for name in sorted(self._held):
            self.begin(name, since)

    def begin(self, name: str, at: float) -> None:
        """Note that a node is there, if that is new."""
        if name not in self._there:
            self._there.add(name)
            self._write(NodeLine(event="began", name=name, at=at, asked_at=self._asked(name)))

    def end(self, name: str) -> None:
        """Note that a node is there no more, if it was."""
        if name in self._there:
            self._there.remove(name)
            self._write(NodeLine(event="ended", name=name))

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Note that a node's worker has joined."""
        state = scheduler.workers[worker]
        name = self._names[worker] = str(state.name)
        self.begin(name, time.time())
        self._write(NodeLine(event="joined", name=name, host=state.host))

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        """Note that a node has ended which is nothing but its worker."""
        name = self._names.pop(worker, "")
        if name not in self._held and self._asked(name) is None:
            self.end(name)

    def _write(self, line: NodeLine) -> None:
        try:
            append_line(self._folder.nodes, line.model_dump_json(exclude_none=True))
        except OSError as error:
            logger.warning("When %s %s is not written down: %s", line.name, line.event, error)
