"""Watches the ranks of a node while they run, and finds the causes of failures."""

from __future__ import annotations

import mmap
import signal
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.clusters.cancellable_call import wanted
from headrace.files.atomic import is_there, read_record, write_text
from headrace.files.layout import StepFolder
from headrace.processes.children import Child, ChildEnd, ChildGroup, Process, start_program
from headrace.processes.working_folder import FOLDER
from headrace.training.launch import rank_name
from headrace.training.launch_records import FailureKind, NodeLaunch, NodeOutcome, RankFailure
from headrace.training.rank_failures import script_failure

_LOOK_EVERY_S = 0.25
_DUMP_S = 1.0
START_S = 300.0
"""Shortest time that ranks have for their imports and rendezvous before training starts."""

_ENDED_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BEAT = struct.Struct("<Qd")


class Beat:
    """A rank's counter of signs of life."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(_BEAT.pack(0, time.monotonic()))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BEAT.size)
        self._count = 0

    def tick(self) -> None:
        """Tell that the rank has got one thing further."""
        self._count += 1
        _BEAT.pack_into(self._memory, 0, self._count, time.monotonic())


def read_beat(path: Path) -> tuple[int, float | None]:
    """A node's side: beats so far, and when the last one was; `(0, None)` before the first.

    That is in seconds of `time.monotonic`, which is one clock for all processes of a machine.
    """
    try:
        count, at_s = _BEAT.unpack(path.read_bytes())
    except (FileNotFoundError, struct.error):
        return 0, None
    return (count, at_s) if count else (0, None)


class RankWatch:
    """Watches the ranks of one node; one without a sign of life for `hang_timeout_s` hangs.

    A script hangs only if it has given one before.
    """

    def __init__(
        self,
        launch: NodeLaunch,
        group: ChildGroup,
        children: Sequence[Child],
        hang_timeout_s: float,
    ) -> None:
        self._launch = launch
        self._group = group
        self._hang_timeout_s = hang_timeout_s
        self._started_s = time.monotonic()
        self._looked_at = 0.0
        self._hung: list[RankFailure] = []
        self._is_script = "headrace.processes" in children[0].command
        self._folder = children[0].env.get(FOLDER, "")
        names = {child.name for child in children}
        self._ranks = tuple(rank for rank in launch.ranks if rank_name(rank) in names)
        self._has_met = not self._is_script or launch.world_size == 1 or launch.node_index > 0

    def keep_on(self) -> bool:
        """Whether the ranks are to go on; looks at files a few times a second."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_S:
            return True
        self._looked_at = now
        self.look_for_group()
        if is_over(self._launch):
            return False
        self._hung = self._find_hung()
        if self._hung:
            self._dump_traces()
        return not self._hung

    def look_for_group(self) -> bool:
        """Return whether a rank of a script has reached the port of rank 0 so far."""
        self._has_met = self._has_met or _is_used(self._launch.master_port)
        return self._has_met

    def beats(self) -> dict[int, int]:
        """Signs of life of each rank so far."""
        return {rank: read_beat(self._launch.folder.beat(rank))[0] for rank in self._ranks}

    def failures(self, ends: Sequence[ChildEnd]) -> tuple[RankFailure, ...]:
        """Why ranks failed; empty when none did."""
        if self._hung:
            return tuple(self._hung)
        by_name = {end.name: end for end in ends}
        found = (self._failure(rank, by_name[rank_name(rank)]) for rank in self._ranks)
        return tuple(failure for failure in found if failure is not None)

    def _find_hung(self) -> list[RankFailure]:
        now_s = time.monotonic()
        hung = []
        for rank in self._ranks:
            _, at_s = read_beat(self._launch.folder.beat(rank))
            if at_s is None and self._is_script:
                continue  # scripts need not give any
            limit_s = self._hang_timeout_s if at_s else max(self._hang_timeout_s, START_S)
            silent_s = now_s - (at_s or self._started_s)
            if rank_name(rank) in self._group.running and silent_s > limit_s:
                hung.append(
                    RankFailure(
                        rank=rank,
                        node=self._launch.node_name,
                        kind=FailureKind.HUNG,
                        what=f"no sign of life for {silent_s:.0f} s; all ranks were stopped",
                        hint=f"Its threads' traces are at the end of rank-{rank}.log. "
                        "train.hang_timeout sets the time.",
                        at=time.time(),
                    )
                )
        return hung

    def _dump_traces(self) -> None:
        """Have hung ranks write where they are: faulthandler does so on SIGABRT."""
        for failure in self._hung:
            self._group.signal(rank_name(failure.rank), signal.SIGABRT)
        self._group.wait(_DUMP_S)

    def _failure(self, rank: int, end: ChildEnd) -> RankFailure | None:
        said = read_record(self._launch.folder.failure(rank), RankFailure)
        if said is not None:
            return said.model_copy(update={"node": self._launch.node_name})
        is_done = self._is_script or is_there(self._launch.folder.done(rank))
        if end.stopped or (end.code == 0 and is_done):
            return None
        if self._is_script and end.code > 0:
            failure = script_failure(rank, end, end.last_words, self._folder)
            return failure.model_copy(update={"node": self._launch.node_name})
        kind, what, hint = _kind(end), f"ended by {end.cause}", end.advice
        if end.code == 0:
            kind, what = FailureKind.USER_ERROR, f"ended with {end.cause} in the middle of training"
            hint = "See whether the code calls `os._exit`, and raise an error instead. "
        return RankFailure(
            rank=rank,
            node=self._launch.node_name,
            kind=kind,
            what=what,
            hint=f"{hint}See {end.log}:\n{end.last_words}",
            at=end.at,
        )


def run_watched(
    launch: NodeLaunch,
    children: Sequence[Child],
    hang_timeout_s: float,
    start: Callable[[Child], Process] = start_program,
) -> NodeOutcome:
    """Run all or some ranks of a node to their end; return their faults, without raising them."""
    with ChildGroup(children, start=start) as group:
        watch = RankWatch(launch, group, children, hang_timeout_s)
        ends = group.supervise(watch.keep_on)
    return NodeOutcome(
        node=launch.node_name,
        stopped=any(end.stopped for end in ends),
        failures=watch.failures(ends),
        beats=watch.beats(),
        has_met=watch.look_for_group(),
    )


def _is_used(port: int) -> bool:
    """Whether a TCP socket of this machine uses a port, or did within the last minute.

    Source: https://docs.kernel.org/networking/proc_net_tcp.html
    """
    ends = f":{port:04X}"
    for file in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        rows = file.read_text().splitlines()[1:] if file.exists() else ()
        if any(each.endswith(ends) for row in rows for each in row.split()[1:3]):
            return True
    return False


def tell_failure(launch: NodeLaunch, outcome: NodeOutcome) -> None:
    """End all other ranks of a launch after a failure."""
    write_text(launch.folder.stop, f"{outcome.node}: {outcome.failures[0].what}")


def is_over(launch: NodeLaunch) -> bool:
    """Whether the ranks of a launch are to end: one has failed, or the launch is obsolete."""
    return is_there(launch.folder.stop) or is_obsolete(launch)


def is_obsolete(launch: NodeLaunch) -> bool:
    """Whether the launch is obsolete: its step was cancelled or has ended."""
    step = StepFolder(Path(launch.step_folder))
    return any(is_there(mark) for mark in (step.cancel, step.exit, step.result)) or not wanted()


def _kind(end: ChildEnd) -> FailureKind:
    if end.out_of_memory:
        return FailureKind.OUT_OF_MEMORY
    if end.code < 0 and -end.code in _ENDED_FROM_OUTSIDE:
        return FailureKind.KILLED
    return FailureKind.CRASHED
