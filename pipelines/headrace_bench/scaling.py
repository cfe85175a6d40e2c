"""How reading, packing and staging grow with the cores that they may use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from headrace.errors import UserError
from headrace_bench.contest import Tick
from headrace_bench.pack import PackOptions, bench_pack
from headrace_bench.read import ReadOptions, bench_read
from headrace_bench.records import BenchTable
from headrace_bench.stage import StageOptions, bench_stage

Options = ReadOptions | PackOptions | StageOptions


def known_cores(text: str) -> tuple[int, ...]:
    """Numbers of cores from text as `1,2,4`, in rising order.

    Raises:
        UserError: One is no number, or more than this process may use.
    """
    available = len(os.sched_getaffinity(0))
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= available for part in parts):
        raise UserError(
            f"--cores '{text}' is not possible",
            f"Write numbers from 1 to {available}, the cores that this process may use, "
            "separated by commas.",
        )
    return tuple(sorted({int(part) for part in parts}))


def bench_scaling(
    cores: Sequence[int], benches: Sequence[Options], tick: Tick
) -> tuple[BenchTable, ...]:
    """Run each benchmark with each number of cores, in a process a number that is bound to them.

    Args:
        cores: Numbers of cores.
        benches: What to run, by its options.
        tick: Told which one runs.

    Raises:
        StorageFullError: A folder has no room.
    """
    tables: list[BenchTable] = []
    for num_cores in cores:
        spawn = get_context("spawn")
        with _bound_to(num_cores), ProcessPoolExecutor(1, mp_context=spawn) as pool:
            for options in benches:
                name = type(options).__name__.removesuffix("Options").lower()
                tick(f"{name}, bound to {num_cores} of the cores")
                found = pool.submit(_bench, options).result()
                tables += [table.model_copy(update={"num_cores": num_cores}) for table in found]
    return tuple(tables)


def _bench(options: Options) -> tuple[BenchTable, ...]:
    if isinstance(options, ReadOptions):
        return bench_read(options, _untold)
    if isinstance(options, PackOptions):
        return bench_pack(options, _untold)
    return bench_stage(options, _untold)


def _untold(_: str) -> None:
    """The process that asked tells what runs."""


@contextmanager
def _bound_to(num_cores: int) -> Iterator[None]:
    """Bind this process, and those that it starts meanwhile, to the first of its cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:num_cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
