"""Runs a benchmark, adds hardware, versions and load to its figures, and prints them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from rich.console import Console
from rich.table import Table

from headrace_bench import machine
from headrace_bench.peers import Loader
from headrace_bench.records import BenchReport, BenchRow, BenchTable


def run(
    command: str, peers: Sequence[Loader], bench: Callable[[], tuple[BenchTable, ...]]
) -> BenchReport:
    """Run a benchmark, which `command` repeats; the report includes versions of the peers."""
    host = machine.machine(sorted({peer.package or peer.module for peer in peers}))
    load_before = machine.load()
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    began = time.perf_counter()
    tables = bench()
    return BenchReport(
        command=command,
        date=date,
        machine=host,
        load_before=load_before,
        load_after=machine.load(),
        seconds=time.perf_counter() - began,
        tables=tables,
        warnings=machine.busy_warnings(load_before, host.num_cores),
    )


def show(report: BenchReport, console: Console) -> None:
    """Print the tables, the machine and reasons for doubt."""
    for table in report.tables:
        console.print(_grid(table))
        for note in table.notes:
            console.print(note, style="dim")
        console.print()
    host = report.machine
    console.print(
        f"{host.cpu}, {host.num_cores} cores, {host.memory_bytes / 2**30:.0f} GiB, {host.system}; "
        f"{report.date}, {report.seconds:.0f} s; load {report.load_before:.2f} before, "
        f"{report.load_after:.2f} after"
    )
    versions = ", ".join(f"{name} {version}" for name, version in host.versions.items())
    console.print(versions, style="dim")
    for warning in report.warnings:
        console.print(warning, style="yellow")


def _grid(table: BenchTable) -> Table:
    grid = Table("", title=table.title, title_justify="left")
    for name in ("GB/s", "median", "samples/s", "of limit", "headrace is"):
        grid.add_column(name, justify="right")
    grid.add_column("how")
    for row in table.rows:
        grid.add_row(*_cells(table, row))
    return grid


def _cells(table: BenchTable, row: BenchRow) -> tuple[str, ...]:
    if row.gb_per_s is None or row.median_gb_per_s is None or row.samples_per_s is None:
        return row.name, "-", "-", "-", "-", "-", row.problem
    share, times = table.of_limit.get(row.name), table.headrace_over.get(row.name)
    return (
        row.name,
        f"{row.gb_per_s:.3g}",
        f"{row.median_gb_per_s:.3g}",
        f"{row.samples_per_s:,.0f}" if row.samples_per_s >= 100 else f"{row.samples_per_s:.3g}",
        "-" if share is None else f"{share:.2f}",
        "" if times is None else f"{times:.1f} x",
        row.settings,
    )
