"""Machines that come and go in simulated time, and the trials on them."""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headrace_foresight.scenario import Nodes, Outcome, Scenario, SimulatedJob

if TYPE_CHECKING:
    import simpy

    Events = Generator[simpy.Event, None, None]

_HOUR_S = 3600.0
_DONE_S = 1e-6


@dataclass(eq=False)
class SimulatedTrial:
    """A trial while it is simulated."""

    job: SimulatedJob
    rank: int
    left_s: float
    start_left_s: float = 0.0
    unsaved_s: float = 0.0
    gpus: tuple[int, ...] = ()
    gpu_rate: float = 0.0
    """GPU seconds of a second of its work, at last."""
    at_s: float = 0.0
    """Until when its work is counted."""

    @property
    def expected_left_s(self) -> float:
        """Return what a planner believes that is left of it."""
        return self.left_s * (self.job.expected_s or self.job.seconds) / self.job.seconds


@dataclass(eq=False)
class LiveNode:
    """A node that is paid."""

    kind: Nodes
    begun_s: float
    held: list[SimulatedTrial] = field(default_factory=list)
    is_up: bool = False


@dataclass(eq=False)
class World:
    """Trials and nodes while they are simulated; nodes share the waiting trials."""

    env: simpy.Environment
    scenario: Scenario
    random: np.random.Generator
    waiting: list[SimulatedTrial] = field(default_factory=list)
    live: list[LiveNode] = field(default_factory=list)
    opening: Counter[Nodes] = field(default_factory=Counter)
    """Nodes in a queue, or booting."""
    ended_at: float = 0.0
    paid_node_s: float = 0.0
    paid_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0
    useful_gpu_s: float = 0.0
    usd_of: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    interruptions: int = 0

    def __post_init__(self) -> None:
        self.came = self.env.event()

    def put(self, piece: SimulatedTrial) -> None:
        """Let a trial wait, in its place, and wake nodes with room."""
        bisect.insort(self.waiting, piece, key=self.place_of)
        self.wake()

    def place_of(self, piece: SimulatedTrial) -> tuple[float, int]:
        """Return a trial's place among those that wait."""
        sign = {"longest": -1.0, "shortest": 1.0, "given": 0.0}[self.scenario.order]
        return sign * piece.expected_left_s, piece.rank

    def wake(self) -> None:
        """Wake nodes with room."""
        came, self.came = self.came, self.env.event()
        came.succeed()

    def waiting_for(self, kind: Nodes) -> list[SimulatedTrial]:
        """Return the waiting trials that nodes of a kind may take."""
        return self.waiting

    def ended(self, kind: Nodes, pieces: Sequence[SimulatedTrial]) -> None:
        """Note that trials have ended."""
        self.ended_at = self.env.now

    def place(self, kind: Nodes) -> Events:
        """Serve one place of a node: nodes come and go in it as long as it has work."""
        while True:
            while not self.is_wanted(kind):
                yield self.came
            self.opening[kind] += 1
            if kind.queue_s:
                yield self.env.timeout(self.random.exponential(kind.queue_s))
            if self.has_work(kind):
                yield from self.node(kind)
            else:
                self.opening[kind] -= 1

    def is_wanted(self, kind: Nodes) -> bool:
        """Whether a further node should be requested."""
        return self.has_work(kind)

    def has_work(self, kind: Nodes) -> bool:
        """Whether a trial waits that fits on such a node."""
        return any(piece.job.gpus <= kind.gpus for piece in self.waiting_for(kind))

    def node(self, kind: Nodes) -> Events:
        """Serve one node, from its first paid second to the last."""
        live = LiveNode(kind, self.env.now)
        begun, held = live.begun_s, live.held
        self.live.append(live)
        rate = kind.interruptions_per_hour / _HOUR_S
        lost_at = begun + (self.random.exponential(1 / rate) if rate else math.inf)
        end = min(begun + kind.walltime_s, lost_at)
        yield self.env.timeout(min(kind.boot_s, end - begun))
        live.is_up = True
        self.opening[kind] -= 1
        while self.env.now < end - _DONE_S:
            self.take(kind, held, begun + kind.walltime_s - self.env.now)
            if not held:
                break  # no trial waits that fits into its time
            yield from self.work(kind, held, end)
        self.live.remove(live)
        self.interruptions += bool(held) and lost_at == end
        for piece in held:
            self.cut(piece, is_lost=lost_at == end)
        paid_s = self.env.now - begun
        self.paid_node_s += paid_s
        self.paid_gpu_s += paid_s * kind.gpus
        self.usd_of[kind.site] += paid_s / _HOUR_S * (kind.usd_per_hour or 0.0)

    def take(self, kind: Nodes, held: list[SimulatedTrial], left_s: float) -> None:
        """Begin waiting trials that have room on this node and fit into its time."""
        loads = _loads(kind, held)
        waiting = self.waiting_for(kind)
        for piece in tuple(waiting):
            if min(loads.values()) >= self.scenario.pack:
                return
            room = 1 if piece.job.gpus > 1 else self.scenario.pack
            free = [gpu for gpu in sorted(loads, key=loads.__getitem__) if loads[gpu] < room]
            if len(free) < piece.job.gpus or not self.fits(piece, kind, left_s):
                continue
            waiting.remove(piece)
            held.append(piece)
            piece.gpus, piece.start_left_s = tuple(free[: piece.job.gpus]), self.scenario.restart_s
            loads = _loads(kind, held)
            piece.unsaved_s, piece.at_s = 0.0, self.env.now

    def fits(self, piece: SimulatedTrial, kind: Nodes, left_s: float) -> bool:
        """Whether a trial may begin on a node with so much time left."""
        slowest = 1.0 + (self.scenario.pack - 1) * self.scenario.slow_down
        need_s = (piece.left_s + self.scenario.restart_s) * slowest / kind.speed
        is_too_long = need_s > kind.walltime_s - kind.boot_s
        return left_s > self.scenario.restart_s if is_too_long else need_s <= left_s

    def work(self, kind: Nodes, held: list[SimulatedTrial], end: float) -> Events:
        """Let a node's trials run until one is done, others come, or the node ends."""
        loads = _loads(kind, held)
        slow = {}
        for piece in held:
            load = 1.0 if piece.job.gpus > 1 else loads[piece.gpus[0]]
            slow[piece] = (1.0 + (load - 1.0) * self.scenario.slow_down) / kind.speed
            piece.gpu_rate = slow[piece] * piece.job.gpus / load
        first = [(piece.start_left_s + piece.left_s) * slow[piece] for piece in held]
        until_s, before = min([*first, end - self.env.now]), self.env.now
        events: list[simpy.Event] = [self.env.timeout(until_s)] if until_s < math.inf else []
        if min(loads.values()) < self.scenario.pack:
            events.append(self.came)
        yield self.env.any_of(events)
        passed_s = self.env.now - before
        self.busy_gpu_s += passed_s * sum(load > 0 for load in loads.values())
        for piece in held:
            self.go_on(piece, passed_s / slow[piece])
        ended = [piece for piece in held if piece.left_s <= _DONE_S]
        held[:] = [piece for piece in held if piece not in ended]
        if ended:
            self.ended(kind, ended)

    def go_on(self, piece: SimulatedTrial, seconds: float) -> None:
        """Let a trial run for so many seconds; its start is part of them."""
        piece.at_s = self.env.now
        started_s = min(seconds, piece.start_left_s)
        piece.start_left_s -= started_s
        piece.left_s -= seconds - started_s
        piece.unsaved_s += seconds - started_s
        self.useful_gpu_s += (seconds - started_s) * piece.gpu_rate

    def cut(self, piece: SimulatedTrial, *, is_lost: bool) -> None:
        """End an attempt early; without notice, the work since the last checkpoint is lost."""
        lost_s = piece.unsaved_s % self.scenario.checkpoint_s if is_lost else 0.0
        piece.left_s += lost_s
        self.useful_gpu_s -= lost_s * piece.gpu_rate
        self.put(piece)

    def outcome(self) -> Outcome:
        """Return what all of it took."""
        return Outcome(
            makespan_s=self.ended_at,
            node_hours=self.paid_node_s / _HOUR_S,
            usd=sum(self.usd_of.values()),
            usd_of=dict(self.usd_of),
            utilisation=self.busy_gpu_s / (self.paid_gpu_s or 1.0),
            waste=1.0 - self.useful_gpu_s / (self.paid_gpu_s or 1.0),
            interruptions=self.interruptions,
        )


def _loads(kind: Nodes, held: Sequence[SimulatedTrial]) -> dict[int, float]:
    """Return the trials on each GPU of a node; infinite if a trial has several GPUs alone."""
    loads = dict.fromkeys(range(kind.gpus), 0.0)
    for piece in held:
        for gpu in piece.gpus:
            loads[gpu] += 1.0 if piece.job.gpus == 1 else math.inf
    return loads
