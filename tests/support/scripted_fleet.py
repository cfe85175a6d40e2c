"""Launches of a gang that end as a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.training.gang import run_node
from headrace.training.launch_records import FailureKind, NodeLaunch, NodeOutcome, RankFailure
from support.training import ThisProcessFleet


class ScriptedFleet(ThisProcessFleet):
    """Launches end as told, without ranks."""

    def __init__(self, *ends: FailureKind | Exception | None) -> None:
        super().__init__(1)
        self._ends: Iterator[FailureKind | Exception | None] = iter(ends)
        self.launches: list[NodeLaunch] = []

    def on_nodes(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        nodes: Sequence[Any],
        *,
        check: Callable[[], None],
    ) -> list[NodeOutcome]:
        assert function is run_node
        assert not arguments[0][0].folder.stop.exists()
        check()
        self.launches.append(arguments[0][0])
        end = next(self._ends)
        if isinstance(end, Exception):
            raise end
        failures = () if end is None else (RankFailure(rank=0, kind=end, what="w", at=0.0),)
        return [NodeOutcome(node="node-0", stopped=False, failures=failures)]
