"""`headrace bench`: how fast this machine reads, packs, stages, trains, and its limit."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from headrace.cli.console import JsonOption, open_console, tidy_end
from headrace.cli.watching import telling
from headrace.errors import UserError
from headrace_bench import foresight, gpu_check, suite
from headrace_bench.contest import BenchOptions, Tick
from headrace_bench.machine import num_cores
from headrace_bench.workspace import in_memory

if TYPE_CHECKING:
    from headrace_bench.records import BenchTable

_MIB = 2**20
_MOST = 16
"""Cores for which the data grow: more would need too much memory."""

_TABLES = ("parquet", "csv")
_CODECS: tuple[Literal["lz4", "zstd", "blosc"], ...] = ("lz4", "zstd", "blosc")

Bench = Callable[[BenchOptions, Tick], "tuple[BenchTable, ...]"]
Options = TypeVar("Options")

Sizes = Annotated[str, typer.Option(help="Bytes of a sample, separated by commas.")]
Total = Annotated[
    str | None,
    typer.Option(help="Bytes of all samples of a table, as in 256MiB; default: by the cores."),
]
Folder = Annotated[
    Path | None,
    typer.Option(help="Folder to work in; default: /dev/shm, so that no disk is measured."),
]
Peers = Annotated[bool, typer.Option("--peers", help="Compare with other ways to do the same.")]


def read(
    sizes: Sizes = "3072,110592,1400000",
    decode: Annotated[
        str | None,
        typer.Option(help=f"Read what must be decoded; valid: jpeg, {', '.join(_CODECS)}."),
    ] = None,
    total: Total = None,
    folder: Folder = None,
    peers: Peers = False,
    as_json: JsonOption = False,
) -> None:
    """Measure shuffled batches: from memory (the limit), by headrace's loader.

    With `--peers` also by torch's DataLoader over single files and by h5py. All variants alternate
    in one run, and their samples are compared with the written ones. Ratios are of the best laps.
    The files of the benchmark are removed at its end.

    Examples:
        headrace bench read
        headrace bench read --peers --sizes 110592
        headrace bench read --decode jpeg --json
        headrace bench read --decode zstd
    """
    from headrace_bench.compressed import bench_compressed  # torch takes two seconds
    from headrace_bench.photos import bench_decode
    from headrace_bench.read import bench_read

    ways: dict[str, Bench] = {codec: partial(bench_compressed, codec) for codec in _CODECS}
    bench = _known("--decode", decode, {"jpeg": bench_decode, **ways}, bench_read)
    _show(bench, _options(5, total or 128 * _MIB, folder, sizes, peers=peers), as_json=as_json)


def pack(
    sizes: Sizes = "3072,110592,1400000",
    table: Annotated[
        str | None,
        typer.Option(help=f"Pack a file of 17 columns of numbers; valid: {', '.join(_TABLES)}."),
    ] = None,
    total: Total = None,
    folder: Folder = None,
    peers: Peers = False,
    as_json: JsonOption = False,
) -> None:
    """Measure packing of small files, a process per core: concatenated (the limit), by headrace.

    All variants alternate in one run, and their results are compared with the files. With `--peers`
    also by h5py, a sample at a time. The files of the benchmark are removed at its end.

    Examples:
        headrace bench pack
        headrace bench pack --peers --sizes 3072 --json
        headrace bench pack --table parquet
    """
    from headrace_bench.pack import bench_pack  # torch takes two seconds
    from headrace_bench.pack_table import bench_table

    forms = {form: partial(bench_table, form) for form in _TABLES}
    bench = _known("--table", table, forms, bench_pack)
    _show(bench, _options(3, total or 256 * _MIB, folder, sizes, peers=peers), as_json=as_json)


def stage(
    source: Annotated[
        Path | None, typer.Option(help="Folder for the dataset; default: on disk.")
    ] = None,
    total: Total = None,
    folder: Folder = None,
    peers: Peers = False,
    as_json: JsonOption = False,
) -> None:
    """Measure staging of a dataset to this node: by sendfile (the limit), headrace, `cp -r`.

    With `--peers` also by rsync. The source is in the page cache, so that no disk is measured.
    Copies are compared with the source, and removed at the end.

    Examples:
        headrace bench stage
        headrace bench stage --source /scratch --folder /dev/shm --json
    """
    from headrace_bench.stage import bench_stage  # h5py takes half a second

    place = (source or Path(tempfile.gettempdir())).expanduser().absolute()
    bench = partial(bench_stage, place)
    _show(bench, _options(4, total or 256 * _MIB, folder, peers=peers), as_json=as_json)


def train(  # noqa: PLR0913  options of a command
    ranks: Annotated[
        int | None,
        typer.Option(help="Processes that train together; default: one per GPU, else 2.", min=1),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per batch of each.", min=2)] = 16,
    steps: Annotated[int, typer.Option(help="Optimizer steps of a lap.", min=4)] = 20,
    rounds: Annotated[int, typer.Option(help="Laps of each variant.", min=1)] = 3,
    photos: Annotated[
        bool, typer.Option("--photos", help="Random crops of photographs, against a DataLoader.")
    ] = False,
    folder: Folder = None,
    as_json: JsonOption = False,
) -> None:
    """Measure training of ResNet-50: by a plain DDP loop under torchrun (the limit), by a step.

    Both have the same network, ranks and threads, on GPUs if PyTorch finds some. The results are
    samples per second, and the time until the first optimizer step has ended.

    With `--photos`: one process and random crops of photographs as for ImageNet, by headrace's
    loader and by torch's DataLoader with torchvision (or Pillow), the best of 0, 2, half as many
    workers as cores, and as many. A GPU trains on the crops; without one they are only read.

    Examples:
        headrace bench train
        headrace bench train --photos --batch-size 64
        headrace bench train --ranks 4 --batch-size 8 --json
    """
    import torch  # takes two seconds

    from headrace_bench.photos import PhotoOptions, bench_photos
    from headrace_bench.train import TrainOptions, bench_train

    place, ranks = _folder(folder), ranks or torch.cuda.device_count() or 2
    if photos:
        of_photos = PhotoOptions(batch_size=batch_size, rounds=rounds, folder=place)
        _show(bench_photos, of_photos, as_json=as_json)
        return
    of_steps = TrainOptions(
        ranks=ranks, batch_size=batch_size, steps=steps, rounds=rounds, folder=place
    )
    _show(bench_train, of_steps, as_json=as_json)


def s3(
    work: Annotated[
        str, typer.Option(help="What to measure, separated by commas.")
    ] = "pack,stage,upload",
    sizes: Sizes = "3072,110592,1400000",
    total: Total = None,
    folder: Folder = None,
    peers: Peers = False,
    as_json: JsonOption = False,
) -> None:
    """Measure packing from, staging from and uploading to S3: by `rclone copy`, by headrace.

    `rclone copy` is the limit, and `rclone serve s3` on this machine the server. rclone copies the
    same objects with as many requests at once as headrace; with `--peers` also with its default
    options. Results are compared with the written files, and removed at the end.

    Examples:
        headrace bench s3
        headrace bench s3 --work pack --sizes 3072 --json
    """
    from headrace_bench.s3 import bench_s3, known_work  # torch takes two seconds

    bench = partial(bench_s3, known_work(work))
    _show(bench, _options(3, total or 64 * _MIB, folder, sizes, peers=peers), as_json=as_json)


def _known(option: str, name: str | None, known: Mapping[str, Bench], default: Bench) -> Bench:
    """Return the benchmark of this name; the default without one."""
    if name is not None and name not in known:
        raise UserError(f"{option} '{name}' is not known", f"Valid: {', '.join(known)}.")
    return default if name is None else known[name]


def _options(
    rounds: int, total: str | int, folder: Path | None, sizes: str | None = None, *, peers: bool
) -> BenchOptions:
    """Return the options; a number `total` is of bytes for each core, as threads need work."""
    from headrace_bench.peers import PEERS

    num_bytes = _bytes(total) if isinstance(total, str) else total * min(max(num_cores(), 2), _MOST)
    return BenchOptions(
        sizes=() if sizes is None else tuple(map(_bytes, sizes.split(","))),
        total_bytes=num_bytes,
        rounds=rounds,
        folder=_folder(folder),
        peers=tuple(PEERS) if peers else (),
    )


def _show(
    bench: Callable[[Options, Tick], tuple[BenchTable, ...]], options: Options, *, as_json: bool
) -> None:
    """Run a benchmark with progress on standard error, and print its results."""
    from headrace_bench.report import run, show

    command = " ".join(["headrace", *sys.argv[1:]])
    peers = options.peers if isinstance(options, BenchOptions) else ()
    with tidy_end(), telling(open_console(stderr=True)) as tick:
        report = run(command, peers, lambda: bench(options, tick))
    if as_json:
        typer.echo(report.model_dump_json(indent=1))
    else:
        show(report, open_console())


def _bytes(text: str) -> int:
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise UserError(f"'{text}' is not a number of bytes", "Write 3072, 64MiB or 1GB.") from None


def _folder(folder: Path | None) -> Path:
    return in_memory() if folder is None else folder.expanduser().absolute()


app = typer.Typer(
    no_args_is_help=True, help="Measure how fast headrace is here, against the limit."
)
for _command in (read, pack, stage, train, s3, suite.suite, foresight.foresight, gpu_check.gpu):
    app.command()(_command)
