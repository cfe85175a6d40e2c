"""`headrace bench`: how fast this machine reads, packs and stages, and how fast it could."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table as Grid

from headrace.cli.console import open_console
from headrace.cli.ending import tidy_end
from headrace.cli.progress import telling
from headrace.errors import UserError

if TYPE_CHECKING:
    from headrace.storage.manifest import Codec
    from headrace_bench.peers.peer import Peer
    from headrace_bench.records import Report, Row, Table

    Bench = Callable[[tuple[Peer, ...], Callable[[str], None]], tuple[Table, ...]]

_MEMORY = Path("/dev/shm")
_DECODED = ("jpeg", "lz4", "zstd", "blosc")
_S3_ROUNDS = 3

Sizes = Annotated[str, typer.Option(help="Bytes of a sample, separated by commas.")]
Total = Annotated[str, typer.Option(help="Bytes of all samples of a table, as in 256MiB.")]
Folder = Annotated[
    Path | None,
    typer.Option(help="Folder to work in; default is /dev/shm, where no disk is measured."),
]
Peers = Annotated[
    bool, typer.Option("--peers", help="Compare with other libraries: headrace[bench].")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def register(app: typer.Typer) -> None:
    """Add the benchmarks."""
    bench = typer.Typer(
        help="Measure reading, packing, staging and S3 against this machine's limit and other "
        "libraries.",
        no_args_is_help=True,
        invoke_without_command=True,
    )
    bench.callback()(scaling)
    for command in (read, pack, stage, s3):
        bench.command()(command)
    app.add_typer(bench, name="bench")


def scaling(
    context: typer.Context,
    cores: Annotated[
        str | None,
        typer.Option(help="Read, pack and stage bound to so many cores each, as in 1,2,4."),
    ] = None,
    total: Total = "256MiB",
    as_json: JsonOption = False,
) -> None:
    """Measure reading, packing, staging and S3 against this machine's limit and other libraries.

    Examples:
        headrace bench --cores 1,2,4

        headrace bench read --peers
    """
    if context.invoked_subcommand is not None:
        return
    from headrace_bench.pack import PackOptions  # torch takes two seconds
    from headrace_bench.read import ReadOptions
    from headrace_bench.scaling import bench_scaling, known_cores
    from headrace_bench.stage import StageOptions

    numbers, folder, total_bytes = known_cores(cores or ""), _folder(None), _bytes(total)
    source = Path(tempfile.gettempdir())
    benches = (
        ReadOptions(folder=folder, total_bytes=total_bytes),
        PackOptions(folder=folder, total_bytes=total_bytes),
        StageOptions(source=source, folder=folder, total_bytes=total_bytes),
    )

    def bench(_: tuple[Peer, ...], tick: Callable[[str], None]) -> tuple[Table, ...]:
        return bench_scaling(numbers, benches, tick)

    _run(bench, peers=False, as_json=as_json)


def read(
    sizes: Sizes = "3072,110592,1400000",
    decode: Annotated[
        str | None,
        typer.Option(help=f"Read what must be decoded; valid: {', '.join(_DECODED)}."),
    ] = None,
    total: Total = "256MiB",
    folder: Folder = None,
    peers: Peers = False,
    as_json: JsonOption = False,
) -> None:
    """Shuffled batches: out of memory (the limit), by headrace's loader, by other libraries.

    All variants take turns in one run, and what they deliver is compared with what was written.
    Ratios are of the best laps. What the benchmark writes is removed at its end.

    Examples:
        headrace bench read

        headrace bench read --peers --sizes 110592

        headrace bench read --decode jpeg --json

        headrace bench read --decode zstd
    """
    from headrace_bench.compressed import bench_compressed  # torch takes two seconds
    from headrace_bench.decode import bench_decode
    from headrace_bench.read import ReadOptions, bench_read

    if decode not in (None, *_DECODED):
        raise UserError(f"--decode '{decode}' is not known", f"Valid: {', '.join(_DECODED)}.")

    def bench(others: tuple[Peer, ...], tick: Callable[[str], None]) -> tuple[Table, ...]:
        options = ReadOptions(
            sizes=_sizes(sizes),
            total_bytes=_bytes(total),
            folder=_folder(folder),
            peers=others,
        )
        if decode is None:
            return bench_read(options, tick)
        if decode == "jpeg":
            return bench_decode(options, tick)
        return bench_compressed(options, cast("Codec", decode), tick)

    _run(bench, peers, as_json=as_json)


def pack(
    sizes: Sizes = "3072,110592,1400000",
    total: Total = "512MiB",
    folder: Folder = None,
    peers: Peers = False,
    as_json: JsonOption = False,
) -> None:
    """Small files to shards, a process a core: concatenated (the limit), by headrace, by others.

    All variants take turns in one run, and what they wrote is compared with the files. What the
    benchmark writes is removed at its end.

    Examples:
        headrace bench pack

        headrace bench pack --peers --sizes 3072 --json
    """
    from headrace_bench.pack import PackOptions, bench_pack  # torch takes two seconds

    def bench(others: tuple[Peer, ...], tick: Callable[[str], None]) -> tuple[Table, ...]:
        options = PackOptions(
            sizes=_sizes(sizes),
            total_bytes=_bytes(total),
            folder=_folder(folder),
            peers=others,
        )
        return bench_pack(options, tick)

    _run(bench, peers, as_json=as_json)


def stage(
    source: Annotated[
        Path | None, typer.Option(help="Folder that the dataset is made in; default is on disk.")
    ] = None,
    total: Total = "512MiB",
    folder: Folder = None,
    peers: Peers = False,
    as_json: JsonOption = False,
) -> None:
    """A dataset to this node's storage: by sendfile (the limit), by headrace, by `cp -r`.

    With `--peers` also by rsync. The source lies in the page cache, so that no disk is measured.
    Copies are compared with the source, and removed at the end.

    Examples:
        headrace bench stage

        headrace bench stage --source /scratch --folder /dev/shm --json
    """
    from headrace_bench.stage import StageOptions, bench_stage  # h5py takes half a second

    def bench(others: tuple[Peer, ...], tick: Callable[[str], None]) -> tuple[Table, ...]:
        options = StageOptions(
            total_bytes=_bytes(total),
            source=(source or Path(tempfile.gettempdir())).expanduser().absolute(),
            folder=_folder(folder),
            peers=bool(others),
        )
        return bench_stage(options, tick)

    _run(bench, peers, as_json=as_json)


def s3(
    work: Annotated[
        str, typer.Option(help="What to measure, separated by commas.")
    ] = "pack,stage,upload",
    sizes: Sizes = "3072,110592,1400000",
    total: Total = "128MiB",
    folder: Folder = None,
    peers: Peers = False,
    as_json: JsonOption = False,
) -> None:
    """Packing from, staging from and uploading to S3: by `rclone copy` (the limit), by headrace.

    The server is `rclone serve s3` on this machine. rclone copies the same objects with as many
    requests at once as headrace has; with `--peers` also as it is without options. Results are
    compared with what was written, and removed at the end.

    Examples:
        headrace bench s3

        headrace bench s3 --work pack --sizes 3072 --json
    """
    from headrace_bench.s3 import S3Options, bench_s3, known_work  # torch takes two seconds

    def bench(others: tuple[Peer, ...], tick: Callable[[str], None]) -> tuple[Table, ...]:
        options = S3Options(
            work=known_work(work),
            sizes=_sizes(sizes),
            total_bytes=_bytes(total),
            rounds=_S3_ROUNDS,
            folder=_folder(folder),
            peers=bool(others),
        )
        return bench_s3(options, tick)

    _run(bench, peers, as_json=as_json)


def _run(bench: Bench, peers: bool, *, as_json: bool) -> None:
    """Run a benchmark with progress on standard error, and print what it found."""
    from headrace_bench.report import all_peers, run

    others = all_peers() if peers else ()
    command = " ".join(["headrace", *sys.argv[1:]])
    with tidy_end(), telling(open_console(stderr=True)) as tick:
        report = run(command, others, lambda: bench(others, tick))
    if as_json:
        typer.echo(report.model_dump_json(indent=1))
    else:
        _print(report, open_console())


def _bytes(text: str) -> int:
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise UserError(f"'{text}' is no number of bytes", "Write 3072, 64MiB or 1GB.") from None


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_bytes(part) for part in text.split(","))


def _folder(folder: Path | None) -> Path:
    if folder is not None:
        return folder.expanduser().absolute()
    return _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())


def _print(report: Report, console: Console) -> None:
    bound = [table for table in report.tables if table.num_cores is not None]
    if bound:
        console.print(_scaling_grid(bound))
    for table in report.tables if not bound else ():
        console.print(_grid(table))
        for note in table.notes:
            console.print(note, style="dim", highlight=False)
        console.print()
    host = report.machine
    console.print(
        f"{host.cpu}, {host.num_cores} cores, {host.memory_bytes / 2**30:.0f} GiB, {host.system}; "
        f"{report.date}, {report.seconds:.0f} s; load {report.load_before:.2f} before, "
        f"{report.load_after:.2f} after",
        highlight=False,
    )
    versions = ", ".join(f"{name} {version}" for name, version in host.versions.items())
    console.print(versions, style="dim", highlight=False)
    for warning in report.warnings:
        console.print(warning, style="yellow", highlight=False)


def _scaling_grid(tables: Sequence[Table]) -> Grid:
    """A row for each work and number of cores; the speedup is over the fewest cores."""
    grid = Grid("", title="headrace by cores, best laps", title_justify="left")
    for name in ("cores", "limit, GB/s", "headrace, GB/s", "of limit", "speedup"):
        grid.add_column(name, justify="right")
    for title in dict.fromkeys(table.title for table in tables):
        first: float | None = None
        for table in (each for each in tables if each.title == title):
            limit, headrace = table.yardstick("limit"), table.yardstick("headrace")
            if limit is None or headrace is None or not headrace.gb_per_s:
                continue
            first = first or headrace.gb_per_s
            grid.add_row(
                title,
                str(table.num_cores),
                f"{limit.gb_per_s:.3g}",
                f"{headrace.gb_per_s:.3g}",
                f"{table.of_limit[headrace.name]:.2f}",
                f"{headrace.gb_per_s / first:.2f}",
            )
    return grid


def _grid(table: Table) -> Grid:
    grid = Grid("", title=table.title, title_justify="left")
    for name in ("GB/s", "median", "samples/s", "of limit", "headrace is"):
        grid.add_column(name, justify="right")
    grid.add_column("how")
    for row in table.rows:
        grid.add_row(*_cells(table, row))
    return grid


def _cells(table: Table, row: Row) -> tuple[str, ...]:
    if row.gb_per_s is None or row.median_gb_per_s is None or row.samples_per_s is None:
        return row.name, "-", "-", "-", "-", "-", row.problem
    share, times = table.of_limit.get(row.name), table.headrace_over.get(row.name)
    return (
        row.name,
        f"{row.gb_per_s:.3g}",
        f"{row.median_gb_per_s:.3g}",
        f"{row.samples_per_s:,.0f}",
        "-" if share is None else f"{share:.2f}",
        "" if times is None else f"{times:.1f} x",
        row.settings,
    )
