"""Which trial begins where: a policy without effects but on its arguments.

A trial that does not fit is not overtaken for ever: the nodes on which it fits soonest are kept for
it from trials behind it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sortedcontainers import SortedList

_ROUNDING = 1e-9
_LEAST_LEFT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What an attempt at a trial takes of each of its nodes."""

    nodes: int = 1
    gpus: int = 0
    """GPUs of each node; 0: it computes on CPUs."""
    share: float = 1.0
    """Share of each of these GPUs, above 0 to 1."""
    cpus: int = 1
    """CPUs of each node; of one with GPUs it gets as large a part as of these."""
    alone: bool = False
    """Whether it takes its nodes whole, whatever it needs of them."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A place for a trial on one node."""

    node: NodeResources
    gpus: tuple[int, ...] = ()
    share: float = 1.0
    cpus: tuple[int, ...] = ()
    """CPUs for it alone; empty: those that all share."""
    node_share: float = 1.0
    """Share of the node: of its GPUs where the trial takes any, else of its CPUs."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A trial that begins now; the allocations are on different nodes."""

    number: int
    allocations: tuple[Allocation, ...]


class NodeResources:
    """What is free on a node.

    Args:
        name: Name of the node.
        num_gpus: GPUs that it has.
        cpus: Its CPUs.
        most: Most trials that compute on CPUs at once; None: as its CPUs allow.
        machine: What its machine is called; empty: as the node.

    Attributes:
        is_staged: Whether the dataset is known to lie there.
        left_s: Seconds after which it is replaced by another one.
    """

    def __init__(
        self,
        name: str,
        num_gpus: int,
        cpus: Sequence[int],
        most: int | None = None,
        machine: str = "",
    ) -> None:
        self.name, self.machine = name, machine or name
        self.num_gpus, self.num_cpus = num_gpus, len(cpus)
        self.running = 0
        self.is_staged = False
        self.left_s = math.inf
        self._gpus = [1.0] * num_gpus
        self._cpus = sorted(cpus)
        self._most = most

    @property
    def free(self) -> tuple[float, int, int]:
        """Free resources for comparison: GPUs, CPUs, and the negative number of trials."""
        return sum(self._gpus), len(self._cpus), -self.running

    def could(self, needs: Resources) -> bool:
        """Whether a trial with these needs fits on the empty node."""
        return needs.gpus <= self.num_gpus

    def holds(self, needs: Resources) -> int:
        """Return how many trials with these needs fit on the empty node."""
        if needs.alone:
            return 1
        if needs.gpus:
            return int(self.num_gpus / (needs.gpus * needs.share) + _ROUNDING)
        return self._most or max(self.num_cpus // max(needs.cpus, 1), 1)

    def allocation(self, needs: Resources) -> Allocation | None:
        """Return an allocation for these needs without taking it; None if there is no room."""
        if needs.alone:
            if self.running:
                return None
            gpus = tuple(range(self.num_gpus))
            return Allocation(node=self, gpus=gpus, cpus=tuple(self._cpus))
        if needs.gpus:
            return self._on_gpus(needs)
        if self._most is not None:
            each, share = self.num_cpus // self._most, 1 / self._most
            fits = self.running < self._most
        else:
            each = min(needs.cpus, self.num_cpus)
            share = each / self.num_cpus if each else 1.0
            fits = len(self._cpus) >= each
        cpus = tuple(self._cpus[:each])
        return Allocation(node=self, cpus=cpus, node_share=share) if fits else None

    def take(self, allocation: Allocation) -> None:
        """A trial begins in an allocation."""
        self.running += 1
        for gpu in allocation.gpus:
            self._gpus[gpu] -= allocation.share
        self._cpus = sorted(set(self._cpus) - set(allocation.cpus))

    def give_back(self, allocation: Allocation) -> None:
        """A trial has left its allocation."""
        self.running -= 1
        for gpu in allocation.gpus:
            self._gpus[gpu] += allocation.share
        self._cpus = sorted({*self._cpus, *allocation.cpus})

    def _on_gpus(self, needs: Resources) -> Allocation | None:
        by_room = sorted(range(self.num_gpus), key=lambda gpu: (-self._gpus[gpu], gpu))
        chosen = [gpu for gpu in by_room if self._gpus[gpu] >= needs.share - _ROUNDING]
        if len(chosen) < needs.gpus:
            return None
        gpus = tuple(sorted(chosen[: needs.gpus]))
        part = needs.gpus * needs.share / self.num_gpus
        cpus = tuple(self._cpus[: max(int(self.num_cpus * part + _ROUNDING), 1)])
        return Allocation(node=self, gpus=gpus, share=needs.share, cpus=cpus, node_share=part)


_Line = tuple[Resources, frozenset[str]]
_Place = tuple[float, float, int]
"""Priority and expected seconds, both negative, and number: the lowest begins first."""


class Queue:
    """Trials that wait, in lines of those that need the same and avoid the same machines."""

    def __init__(self) -> None:
        self._lines: dict[_Line, SortedList] = {}
        self._where: dict[int, tuple[_Line, _Place]] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, number: int) -> bool:
        return number in self._where

    def push(
        self,
        number: int,
        needs: Resources,
        *,
        expected_s: float = 0.0,
        priority: float = 0.0,
        avoids: Iterable[str] = (),
    ) -> None:
        """Let a trial wait, from now on or with other figures; the most urgent begins first.

        Args:
            number: Its number; of equal trials the lowest begins first.
            needs: What it takes.
            expected_s: How long it is expected to take: of equally urgent trials the longest begins
                first; 0 for all: first come, first served.
            priority: How urgent it is, the greatest first.
            avoids: Machines where it does not go while there are others.
        """
        line, place = (needs, frozenset(avoids)), (-priority, -expected_s, number)
        if self._where.get(number) != (line, place):
            self.drop(number)
            self._where[number] = (line, place)
            self._lines.setdefault(line, SortedList()).add(place)

    def drop(self, number: int) -> None:
        """Let a trial wait no more; harmless if it does not wait."""
        if number in self._where:
            line, place = self._where.pop(number)
            self._lines[line].remove(place)
            if not self._lines[line]:
                del self._lines[line]

    def reorder(self, expected_s: Mapping[int, float]) -> None:
        """Take other expectations for all: seconds by number, 0 where unknown."""
        places: defaultdict[_Line, list[_Place]] = defaultdict(list)
        for number, (line, (urgency, _, _)) in self._where.items():
            place = (urgency, -expected_s.get(number, 0.0), number)
            self._where[number] = (line, place)
            places[line].append(place)
        self._lines = {line: SortedList(each) for line, each in places.items()}

    def heads(self) -> Iterator[tuple[int, float, Resources, frozenset[str]]]:
        """Yield the first trial of each line, the most urgent first.

        Each has its number, expected seconds, needs and the machines that it avoids. A line, whose
        trials have the same needs, goes on only if the caller drops the trial.
        """
        lines = list(self._lines)
        while lines:
            line = min(lines, key=lambda each: self._lines[each][0])
            _, length, number = self._lines[line][0]
            yield number, -length, *line
            if number in self._where or line not in self._lines:
                lines.remove(line)

    def ordered(self) -> list[tuple[int, float]]:
        """Return number and expected seconds of all, the most urgent first."""
        places = sorted(place for line in self._lines.values() for place in line)
        return [(number, -negative_s) for _, negative_s, number in places]

    def kinds(self) -> dict[Resources, int]:
        """Return how many wait, by what they need."""
        found = Counter[Resources]()
        for (needs, _), places in self._lines.items():
            found[needs] += len(places)
        return found


def place(queue: Queue, nodes: Sequence[NodeResources], most: int | None = None) -> list[Placement]:
    """Trials that begin now; they are taken out of the queue, and their allocations are taken.

    Args:
        queue: Trials that wait.
        nodes: What is free.
        most: Most trials to begin; None: as many as there is room for.
    """
    placements: list[Placement] = []
    kept: set[str] = set()
    for number, expected_s, needs, avoids in queue.heads():
        if most is not None and len(placements) >= most:
            break
        usable = _usable(nodes, needs, avoids)
        # those first that stay for as long as it takes, and of these where its data lies
        best = sorted(usable, key=lambda n: (n.left_s < expected_s, not n.is_staged))
        allocations = _allocations([node for node in best if node.name not in kept], needs)
        if allocations:
            for allocation in allocations:
                allocation.node.take(allocation)
            queue.drop(number)
            placements.append(Placement(number=number, allocations=allocations))
        elif not kept and len(usable) >= needs.nodes:
            kept = {node.name for node in usable[: needs.nodes]}
    return placements


def _usable(
    nodes: Sequence[NodeResources], needs: Resources, avoids: frozenset[str]
) -> list[NodeResources]:
    """Return the nodes that fit these needs and stay long enough, those with most free first."""
    able = [node for node in nodes if node.could(needs) and node.left_s > _LEAST_LEFT_S]
    others = [node for node in able if node.machine not in avoids]
    chosen = others if len(others) >= needs.nodes else able
    return sorted(chosen, key=lambda node: node.free, reverse=True)


def _allocations(nodes: Iterable[NodeResources], needs: Resources) -> tuple[Allocation, ...]:
    """Return an allocation on each of as many nodes as a trial needs; empty without room."""
    able = (allocation for node in nodes if (allocation := node.allocation(needs)) is not None)
    found = tuple(itertools.islice(able, needs.nodes))
    return found if len(found) == needs.nodes else ()
