"""`headrace bench`: how fast this machine reads, packs, stages, trains, and how fast it could."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from headrace.cli.console import JsonOption, open_console, tidy_end
from headrace.cli.watching import telling
from headrace.errors import UserError
from headrace_bench import foresight, gpu_check, suite

if TYPE_CHECKING:
    from headrace.files.manifest import Codec
    from headrace_bench.peers.peer import Loader
    from headrace_bench.records import BenchTable

    Bench = Callable[[tuple[Loader, ...], Callable[[str], None]], tuple[BenchTable, ...]]

_MEMORY = Path("/dev/shm")
_TABLES = ("parquet", "csv")
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


def scaling(
    context: typer.Context,
    cores: Annotated[
        str | None,
        typer.Option(help="Read, pack and stage bound to so many cores each, as in 1,2,4."),
    ] = None,
    total: Total = "256MiB",
    as_json: JsonOption = False,
) -> None:
    """Measure how fast headrace is here, against the limit.

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
    _run(lambda _, tick: bench_scaling(numbers, benches, tick), peers=False, as_json=as_json)


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

    asked = ReadOptions(sizes=_sizes(sizes), total_bytes=_bytes(total), folder=_folder(folder))

    def bench(others: tuple[Loader, ...], tick: Callable[[str], None]) -> tuple[BenchTable, ...]:
        options = replace(asked, peers=others)
        if decode is None:
            return bench_read(options, tick)
        if decode == "jpeg":
            return bench_decode(options, tick)
        return bench_compressed(options, cast("Codec", decode), tick)

    _run(bench, peers, as_json=as_json)


def pack(
    sizes: Sizes = "3072,110592,1400000",
    table: Annotated[
        str | None,
        typer.Option(help=f"Pack a file of 17 columns of numbers; valid: {', '.join(_TABLES)}."),
    ] = None,
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

        headrace bench pack --table parquet
    """
    from headrace_bench.pack import PackOptions, bench_pack  # torch takes two seconds
    from headrace_bench.pack_table import bench_table

    if table not in (None, *_TABLES):
        raise UserError(f"--table '{table}' is not known", f"Valid: {', '.join(_TABLES)}.")
    asked = PackOptions(sizes=_sizes(sizes), total_bytes=_bytes(total), folder=_folder(folder))

    def bench(others: tuple[Loader, ...], tick: Callable[[str], None]) -> tuple[BenchTable, ...]:
        if table is not None:
            return bench_table(asked, table, tick)
        return bench_pack(replace(asked, peers=others), tick)

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

    options = StageOptions(
        total_bytes=_bytes(total),
        source=(source or Path(tempfile.gettempdir())).expanduser().absolute(),
        folder=_folder(folder),
        peers=peers,
    )
    _run(lambda _, tick: bench_stage(options, tick), peers, as_json=as_json)


def train(
    ranks: Annotated[int, typer.Option(help="Processes that train together.", min=1)] = 2,
    batch_size: Annotated[int, typer.Option(help="Samples a batch of each.", min=2)] = 16,
    steps: Annotated[int, typer.Option(help="Optimizer steps of a lap.", min=4)] = 20,
    rounds: Annotated[int, typer.Option(help="Laps of each variant.", min=1)] = 3,
    folder: Folder = None,
    as_json: JsonOption = False,
) -> None:
    """ResNet-50 on small pictures: by a plain DDP loop under torchrun (the limit), by a train step.

    Both have the same network, ranks and threads, on GPUs where PyTorch sees some. Told are the
    samples a second, and how long it takes until the first optimizer step has ended.

    Examples:
        headrace bench train

        headrace bench train --ranks 4 --batch-size 8 --json
    """
    from headrace_bench.train import TrainOptions, bench_train  # torch takes two seconds

    options = TrainOptions(
        ranks=ranks,
        batch_size=batch_size,
        steps=steps,
        rounds=rounds,
        folder=_folder(folder),
    )
    _run(lambda _, tick: bench_train(options, tick), peers=False, as_json=as_json)


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

    options = S3Options(
        work=known_work(work),
        sizes=_sizes(sizes),
        total_bytes=_bytes(total),
        rounds=_S3_ROUNDS,
        folder=_folder(folder),
        peers=peers,
    )
    _run(lambda _, tick: bench_s3(options, tick), peers, as_json=as_json)


def _run(bench: Bench, peers: bool, *, as_json: bool) -> None:
    """Run a benchmark with progress on standard error, and print what it found."""
    from headrace_bench.report import all_peers, run, show

    others = all_peers() if peers else ()
    command = " ".join(["headrace", *sys.argv[1:]])
    with tidy_end(), telling(open_console(stderr=True)) as tick:
        report = run(command, others, lambda: bench(others, tick))
    if as_json:
        typer.echo(report.model_dump_json(indent=1))
    else:
        show(report, open_console())


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


app = typer.Typer(no_args_is_help=True, invoke_without_command=True)
app.callback()(scaling)
for _command in (read, pack, stage, train, s3, suite.suite, foresight.foresight, gpu_check.gpu):
    app.command()(_command)
