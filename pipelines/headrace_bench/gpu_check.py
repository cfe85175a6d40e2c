"""`headrace bench gpu`: checks everything that needs a GPU on this machine, with one table."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.console import open_console, tidy_end
from headrace.cli.watching import telling
from headrace.clusters.gpus import visible_gpus
from headrace.clusters.lease_folders import reap
from headrace.errors import UserError, shortened
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import SiteFolder
from headrace.processes.children import Child, ChildEnd, ChildGroup
from headrace.processes.identity import begin_child
from headrace.processes.working_folder import python_module
from headrace.steps.node_facts import gpu_names
from headrace_bench import machine
from headrace_bench.contest import Tick
from headrace_bench.gpu_rows import GpuReport, GpuRow, PartRows, confirmed, failed, skipped
from headrace_bench.workspace import in_memory, workspace

logger = logging.getLogger(__name__)

_ROWS = "rows.json"
_MAX_CHARS = 400
_GRACE_S = 8.0
"""Time for a part to end its lease, before it is killed."""
_COLOURS = {"ok": "green", "failed": "red", "skipped": "dim", "measured": ""}


@dataclass(frozen=True, kw_only=True)
class GpuPart:
    """A part of the check, run in its own process."""

    name: str
    target: str
    """Function to call with the part's folder, `module:name`."""
    limit_s: float = 150.0
    needs_cuda: bool = False


_HOME = "headrace_bench.gpu_"
_KEYS, _INPUT, _NODE = f"{_HOME}trainings:keys", f"{_HOME}input", f"{_HOME}node"

_CUDA = ("nccl", "nccl-all", "sync-batchnorm", "16-mixed")

PARTS = (
    GpuPart(name="copies", target=f"{_HOME}data:copies"),
    GpuPart(name="usage", target=f"{_HOME}data:usage", needs_cuda=True),
    GpuPart(name="preflight", target=f"{_NODE}:preflights", limit_s=60.0),
    GpuPart(name="two-ranks", target=f"{_HOME}data:two_ranks"),
    GpuPart(name="decode", target=f"{_INPUT}:decode", limit_s=40.0),
    GpuPart(name="workers", target=f"{_INPUT}:workers", limit_s=40.0),
    GpuPart(name="gpu-decode", target=f"{_INPUT}:gpu_decode", limit_s=60.0),
    GpuPart(name="gpu-tier", target=f"{_INPUT}:gpu_tier", limit_s=60.0),
    *(
        GpuPart(name=name, target=_KEYS, needs_cuda=name in _CUDA)
        for name in ("nccl", "nccl-all", "sync-batchnorm", "bf16-mixed", "16-mixed",
                     "channels-last", "fsdp2")
    ),
    GpuPart(name="resume", target=f"{_HOME}trainings:resume"),
    GpuPart(name="train", target=f"{_HOME}trainings:speed"),
    GpuPart(name="photos", target=f"{_INPUT}:photos", limit_s=90.0),
    GpuPart(name="trials", target=f"{_NODE}:trials", limit_s=90.0),
    GpuPart(name="probe", target=f"{_NODE}:probe", limit_s=90.0),
    GpuPart(name="compile", target=_KEYS, needs_cuda=True),
)  # fmt: skip
"""In the order in which they run: long parts come last, because the total time is limited."""


def gpu(
    only: Annotated[
        str | None,
        typer.Option(help=f"Parts, separated by commas: {', '.join(p.name for p in PARTS)}."),
    ] = None,
    output: Annotated[Path, typer.Option(help="File for all figures, as JSON.")] = Path(
        "gpu-check.json"
    ),
    limit: Annotated[float, typer.Option(help="Seconds for all parts.", min=1)] = 450.0,
) -> None:
    """Check all that needs a GPU, and its speed: one table, and a file with all figures.

    Each part runs in its own process with a time limit: a crash or a hang is a failed row. Without
    CUDA, parts that need it are skipped, and the others are small. No network is needed. The exit
    code is 1 if a row has failed. All files except the figures are removed.

    Examples:
        headrace bench gpu
        headrace bench gpu --only fsdp2,resume --output /tmp/check.json
    """
    parts = known_parts(only)
    output = output.expanduser().absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    began = time.monotonic()
    progress = telling(open_console(stderr=True))
    with tidy_end(), progress as tick, workspace(in_memory(), 2**30) as made:
        lacks, devices = look()
        rows = (devices, *check(parts, made, limit, lacks, tick))
    report = GpuReport(
        command=" ".join(["headrace", *sys.argv[1:]]),
        date=date,
        machine=machine.machine(("lightning", "nvidia-ml-py")),
        gpus=tuple(gpu_names()),
        rows=rows,
        seconds=time.monotonic() - began,
    )
    write_record(output, report)
    show(report, open_console())
    typer.echo(f"Figures: {output}")
    if not report.has_passed:
        raise typer.Exit(1)


def known_parts(only: str | None) -> tuple[GpuPart, ...]:
    """Return the parts of these names, separated by commas; default: all.

    Raises:
        UserError: A name is not a part.
    """
    names = [part.name for part in PARTS]
    wanted = names if only is None else only.split(",")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise UserError(f"--only '{unknown[0]}' is not a part", f"Valid: {', '.join(names)}.")
    return tuple(part for part in PARTS if part.name in wanted)


def look() -> tuple[str, GpuRow]:
    """Return why PyTorch has no CUDA here (empty if it has), and the row of GPUs."""
    import torch  # takes two seconds

    _, gpus = visible_gpus()
    build = f"PyTorch {torch.__version__}"
    lacks = f"{build} has no CUDA device" if not torch.cuda.is_available() else ""
    return lacks, devices_row([gpu.identity for gpu in gpus], torch.cuda.device_count(), build)


def devices_row(gpus: Sequence[str], num_seen: int, build: str) -> GpuRow:
    """Return the row of GPUs, by those that headrace assigns and the number that PyTorch finds.

    A process finds only one part of a GPU (MIG) at a time.
    """
    if not gpus and not num_seen:
        return skipped("GPUs", f"none is here; {build}")
    wanted = min(len(gpus), 1) if any(gpu.startswith("MIG-") for gpu in gpus) else len(gpus)
    problems = [] if num_seen == wanted else [f"{build} sees {num_seen} of {', '.join(gpus)}"]
    return confirmed("GPUs", f"{', '.join(gpus)}: {build} sees {num_seen}", problems)


def check(
    parts: Sequence[GpuPart], folder: Path, limit_s: float, lacks: str, tick: Tick
) -> Iterator[GpuRow]:
    """Run parts, one after another, each in its own folder in `folder`; yield their rows.

    A part that begins after `limit_s` fails at once. `lacks` is the reason without CUDA.
    """
    ends_at = time.monotonic() + limit_s
    for part in parts:
        tick(part.name)
        left_s = ends_at - time.monotonic()
        if lacks and part.needs_cuda:
            yield skipped(part.name, lacks)
        elif left_s <= 0:
            yield failed(part.name, f"not begun: the {limit_s:g} s of the whole check are over")
        else:
            yield from run_part(part, folder / part.name, min(part.limit_s, left_s))


def run_part(part: GpuPart, folder: Path, limit_s: float) -> tuple[GpuRow, ...]:
    """Run a part until it ends or its time is over; return its rows, and a row for a failure.

    Side effects: makes the folder; ends processes that a part has left.
    """
    folder.mkdir()
    child = Child(
        name=part.name,
        command=python_module("headrace_bench.gpu_check", part.target, str(folder)),
        log=folder / "log.txt",
    )
    ends_at = time.monotonic() + limit_s
    try:
        with ChildGroup((child,), grace_s=_GRACE_S) as group:
            (end,) = group.supervise(lambda: time.monotonic() < ends_at)
    finally:
        reap(SiteFolder(folder))  # of a part that was killed
    left = read_record(folder / _ROWS, PartRows) or PartRows()
    problem = left.problem or _problem(end, limit_s)
    if not problem and not left.rows:
        problem = "it has no result"
    return left.rows if not problem else (*left.rows, failed(part.name, problem))


def main(arguments: list[str]) -> int:
    """Entry point of a part; return 1 after an error, whose trace is in the log.

    It calls a target, `module:name`, with a folder, and writes the returned rows there.
    """
    begin_child()
    target, folder = arguments[0], Path(arguments[1])
    try:
        with tidy_end():
            found = PartRows(rows=tuple(resolve_name(target)(folder)))
    except Exception as error:
        logger.exception("%s failed", target)
        found = PartRows(problem=shortened(f"{type(error).__name__}: {error}", _MAX_CHARS))
    write_record(folder / _ROWS, found)
    return 1 if found.problem else 0


def _problem(end: ChildEnd, limit_s: float) -> str:
    """Return why a part without a reported error has failed; empty if it has ended well."""
    last = next(reversed(end.last_words.splitlines()), "no output")
    if end.stopped:
        return f"ended by its time limit of {limit_s:.0f} s; last: {last}"
    return f"{end.cause}: {last}" if end.failed else ""


def show(report: GpuReport, console: Console) -> None:
    """Print the table, and the date, machine and versions."""
    title = f"{report.date}, {report.seconds:.0f} s; {', '.join(report.gpus) or 'no GPU'}"
    grid = Table("", "", "found", title=title, title_justify="left")
    for row in report.rows:
        grid.add_row(row.name, row.outcome, row.told, style=_COLOURS[row.outcome])
    console.print(grid)
    host, versions = report.machine, report.machine.versions
    packages = ", ".join(f"{name} {versions[name]}" for name in ("torch", "lightning", "headrace"))
    console.print(f"{host.cpu}, {host.num_cores} cores; {packages}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
