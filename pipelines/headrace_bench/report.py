"""Runs a benchmark and puts hardware, versions and load beside its figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from headrace_bench import machine
from headrace_bench.peers.peer import MODULES, Peer, load
from headrace_bench.records import Report, Table


def all_peers() -> tuple[Peer, ...]:
    """Every peer, also those that are not installed."""
    return tuple(load(name) for name in MODULES)


def run(command: str, peers: Sequence[Peer], bench: Callable[[], tuple[Table, ...]]) -> Report:
    """Run a benchmark.

    Args:
        command: Command that repeats it.
        peers: Peers that take part, for their versions.
        bench: Runs it.
    """
    host = machine.machine(sorted({peer.package for peer in peers if peer.package}))
    load_before = machine.load()
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    began = time.perf_counter()
    tables = bench()
    return Report(
        command=command,
        date=date,
        machine=host,
        load_before=load_before,
        load_after=machine.load(),
        seconds=time.perf_counter() - began,
        tables=tables,
        warnings=machine.busy_warnings(load_before, host.num_cores),
    )
