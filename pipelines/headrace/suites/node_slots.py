"""GPUs and CPUs of a node: the part of each trial, and GPUs that trials share.

On machines without a queue, the first trial at a place claims a GPU.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache

from headrace.clusters.gpu_reservations import ReservationFile
from headrace.clusters.gpus import AMD, NVIDIA, Gpu, visible_gpus
from headrace.clusters.preflight import node_name
from headrace.errors import LeaseError, StepCancelledError
from headrace.files.atomic import is_there, write_text
from headrace.files.layout import StepFolder
from headrace.files.machine import available_memory_bytes
from headrace.processes.identity import CPUS, MEMORY
from headrace.record import Record
from headrace.steps.node_facts import software

_NONE = "-1"

_TURN_S = 60.0
"""While other users wait, further trials join a claim only within this time."""

_POLL_S = 0.2

_BEHIND = "waits for GPUs after another trial of its suite"

Places = tuple[int, ...]


class NodeCapacity(Record):
    """What this node, as far as its Dask worker may use it, has for trials."""

    machine: str
    """What it is called where it comes from, such as an instance's id."""
    gpus: tuple[Gpu, ...] = ()
    """By their places."""
    mask: str = NVIDIA
    """The variable that names those which a process may use."""
    cpus: tuple[int, ...]
    """CPUs, by the worker's affinity."""
    memory_bytes: int
    """Memory that was free when this was first asked."""
    software: str = ""
    """Versions of headrace and Python, see `headrace.steps.node_facts.software`."""


@cache
def capacity() -> NodeCapacity:
    """What this node has; looked up once in a process, best before anything runs there."""
    mask, gpus = visible_gpus()
    return NodeCapacity(
        machine=node_name(),
        gpus=gpus,
        mask=mask,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        memory_bytes=available_memory_bytes(),
        software=software(),
    )


def part_of(node: NodeCapacity, gpus: Sequence[Gpu], cpus: Sequence[int]) -> dict[str, str]:
    """Environment of processes that keep to a part of a node.

    With GPUs they have no limit of memory, as drivers of these may reserve more than there is;
    without, each of them may ask for all that the node has.

    Args:
        node: What the node has.
        gpus: GPUs that they may use; without any they see none.
        cpus: CPUs that they may use; empty for the worker's.
    """
    names = ",".join(gpu.name for gpu in gpus)
    masks = {node.mask: names} if names else dict.fromkeys((NVIDIA, AMD), _NONE)
    pinned = {CPUS: ",".join(str(cpu) for cpu in cpus)} if cpus else {}
    return {**masks, **pinned, MEMORY: str(0 if gpus else node.memory_bytes)}


@dataclass
class _HeldPlaces:
    """A claim, and trials that use it."""

    claim: ReservationFile
    gpus: tuple[Gpu, ...]
    users: int = 1
    since_s: float = field(default_factory=time.monotonic)
    ending: ExitStack = field(default_factory=ExitStack)

    @property
    def is_open(self) -> bool:
        """Whether a further trial may use it: the claim is new, or no other user waits."""
        if time.monotonic() - self.since_s < _TURN_S:
            return True
        work = self.claim.reservation.work
        return all(other.held or other.work == work for other in self.claim.others())


class SharedGpus:
    """The claims of this process, by the places that the driver assigned."""

    def __init__(self) -> None:
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._held: dict[Places, _HeldPlaces] = {}

    @contextmanager
    def gpus(
        self,
        node: NodeCapacity,
        places: Places,
        work: str,
        folder: StepFolder,
        keep_on: Callable[[], bool],
    ) -> Iterator[tuple[Gpu, ...]]:
        """Wait for as many GPUs as there are places, and hold them while the block runs.

        Args:
            node: The node.
            places: The assigned places; without any, nothing is claimed.
            work: Run that uses them.
            folder: Folder of the attempt; its file `waits` says what it waits for.
            keep_on: Whether the attempt is still wanted.

        Raises:
            StepCancelledError: The attempt was cancelled.
        """
        if not places:
            yield ()
            return
        held = self._joined(places)
        if held is None:
            with self._first_in_line(folder, keep_on):
                held = self._joined(places) or self._claimed(node, places, work, folder, keep_on)
        try:
            yield held.gpus
        finally:
            self._leave(places, held)

    def _joined(self, places: Places) -> _HeldPlaces | None:
        with self._lock:
            held = self._held.get(places)
            if held is None or not held.is_open:
                return None
            held.users += 1
            return held

    def _claimed(
        self,
        node: NodeCapacity,
        places: Places,
        work: str,
        folder: StepFolder,
        keep_on: Callable[[], bool],
    ) -> _HeldPlaces:
        own = gpus_at(node, places)
        rest = [gpu for gpu in node.gpus if gpu not in own]
        by_identity = {gpu.identity: gpu for gpu in (*own, *rest)}
        with ExitStack() as stack:
            claim = stack.enter_context(ReservationFile(work, tuple(by_identity), len(places)))
            names = claim.wait(folder, keep_on)
            held = _HeldPlaces(claim, tuple(by_identity[name] for name in names))
            held.ending = stack.pop_all()
        with self._lock:
            self._held[places] = held
        return held

    def _leave(self, places: Places, held: _HeldPlaces) -> None:
        with self._lock:
            held.users -= 1
            if held.users:
                return
            if self._held.get(places) is held:
                del self._held[places]
            held.ending.close()

    @contextmanager
    def _first_in_line(self, folder: StepFolder, keep_on: Callable[[], bool]) -> Iterator[None]:
        """Let one trial of this process wait for the machine's GPUs; the others wait for it."""
        with ExitStack() as stack:
            while not self._turn.acquire(timeout=_POLL_S):
                if not is_there(folder.waits):
                    write_text(folder.waits, _BEHIND)
                    stack.callback(folder.waits.unlink, missing_ok=True)
                if not keep_on():
                    raise StepCancelledError("The attempt was cancelled while it waited for GPUs")
            stack.callback(self._turn.release)
            yield


SHARED_GPUS = SharedGpus()
"""The claims of this process, a node's worker."""


def gpus_at(node: NodeCapacity, places: Places) -> tuple[Gpu, ...]:
    """Return the GPUs at places of a node.

    Raises:
        LeaseError: The node has fewer GPUs.
    """
    missing = [place for place in places if place >= len(node.gpus)]
    if missing:
        raise LeaseError(f"GPU {missing[0]} was assigned, but the node has {len(node.gpus)}")
    return tuple(node.gpus[place] for place in places)
