"""Commands about datasets: inspect, verify, and data to try headrace with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from headrace.cli import arguments
from headrace.cli.console import JsonOption, open_console, tell_json
from headrace.errors import UnknownNameError
from headrace.files.manifest import FieldInfo, Manifest
from headrace.files.manifest_file import is_sealed
from headrace.objects.store import is_remote, read_manifest_at
from headrace.packing.column_notes import note_texts, remarks
from headrace.recipe.load import load_site
from headrace.recipe.site import StoreOptions

if TYPE_CHECKING:
    from headrace.shards.inspection import DatasetSummary, ShardProblem, ShardSummary

_NUM_SHOWN = 20
_UNSEALED = (
    "the manifest is of an earlier release and has no digest; its statistics, class counts and "
    "provenance are not computed again: they may have been changed"
)

examples = typer.Typer(
    name="example", help="Write example data to try headrace with.", no_args_is_help=True
)

S3SiteOption = Annotated[
    str | None,
    typer.Option(
        help="Site, by name or YAML file, whose S3 settings are used.",
        autocompletion=arguments.sites,
    ),
]


def inspect(
    path: Annotated[str, typer.Argument(help="Folder or URL of a dataset, or one shard file.")],
    site: S3SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the content of a dataset or a shard.

    Examples:
        headrace inspect ~/.headrace/datasets/digits-0123456789ab
        headrace inspect ~/.headrace/datasets/digits-0123456789ab/shards/train-00000.h5
        headrace inspect s3://hospital/packed/scans-0123456789ab --site my-site.yaml
        headrace inspect DATASET --json
    """
    from headrace.shards.inspection import DatasetSummary, summarise

    summary = summarise(path, _s3(site))
    if as_json:
        tell_json(summary)
    elif isinstance(summary, DatasetSummary):
        _print_dataset(summary, open_console())
    else:
        _print_shard(summary, open_console())


def verify(
    path: Annotated[str, typer.Argument(help="Folder or URL of a dataset, or a staged copy.")],
    site: S3SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a dataset: its manifest, and every shard.

    Size, checksum, structure and sample ids of each shard are checked; shards in S3 are downloaded
    one by one to the folder for temporary files. The exit code is 1 if there is a problem.

    Examples:
        headrace verify ~/.headrace/datasets/digits-0123456789ab
        headrace verify s3://hospital/packed/scans-0123456789ab --site my-site.yaml
        headrace verify DATASET --json
    """
    from headrace.shards.inspection import verify_dataset

    options = _s3(site)
    location = path if is_remote(path) else str(Path(path).expanduser().absolute())
    if not is_remote(path) and not Path(location).exists():
        raise UnknownNameError(
            f"{path} does not exist", "Give the folder that a pack step printed."
        )
    manifest = read_manifest_at(location, options)
    with _bytes_bar(as_json) as progress:
        task = progress.add_task("verifying", total=manifest.num_bytes)
        findings = verify_dataset(
            location, lambda num_bytes: progress.advance(task, num_bytes), options
        )
    if as_json:
        sealed = is_sealed(manifest.format_version)
        tell_json({"intact": not findings, "sealed": sealed, "findings": findings})
    else:
        _print_findings(manifest, findings, open_console())
    if findings:
        raise typer.Exit(1)


@examples.command()
def digits(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Target folder; default: that of the recipe digits."),
    ] = None,
) -> None:
    """Write scikit-learn's 1,797 handwritten digits as PNG files in class folders.

    A second call writes only what is missing.

    Examples:
        headrace example digits
        headrace example digits ~/digits
    """
    from headrace.examples.digits import default_folder, export_digits

    folder = (folder or default_folder()).expanduser().absolute()
    num_files = export_digits(folder)
    typer.echo(f"{num_files:,} images in {folder}")


@examples.callback()
def _examples() -> None:
    """Write example data to try headrace with."""


def _s3(site: str | None) -> StoreOptions | None:
    return load_site(site).s3 if site is not None else None


def _bytes_bar(quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    return Progress(
        *columns,
        TransferSpeedColumn(),
        console=open_console(stderr=True, quiet=quiet),
        transient=True,
    )


def _print_findings(
    manifest: Manifest, findings: tuple[ShardProblem, ...], console: Console
) -> None:
    if not is_sealed(manifest.format_version):
        console.print(f"format {manifest.format_version}: {_UNSEALED}")
    if not findings:
        console.print("intact", style="green", end="")
        console.print(
            f": {len(manifest.shards):,} shards, "
            f"{manifest.num_samples:,} samples, {decimal(manifest.num_bytes)}"
        )
        return
    table = Table("shard", "split", "samples", "problem", title="Damaged shards", title_style="red")
    for each in findings:
        samples = f"{each.first_sample:,} to {each.last_sample:,}"
        table.add_row(each.file, each.split, samples, each.problem)
    console.print(table)
    damaged = {finding.file for finding in findings}
    console.print(
        f"{len(damaged):,} of {len(manifest.shards):,} shards are damaged. Remove them and run "
        "the recipe again: only they are packed again."
    )


def _print_dataset(summary: DatasetSummary, console: Console) -> None:
    manifest = summary.manifest
    digest = "" if is_sealed(manifest.format_version) else " (no digest)"
    console.print(Text.assemble((manifest.name, "bold"), f"  {summary.path}"))
    console.print(
        f"{summary.num_samples:,} samples, {len(manifest.shards):,} shards, "
        f"{decimal(summary.num_bytes)}, format {manifest.format_version}{digest}, "
        f"fingerprint {manifest.fingerprint}"
    )
    for table in _tables(manifest):
        console.print(table)
    for note in note_texts(manifest.notes):
        console.print(f"note: {note}")
    for file in summary.missing:
        console.print(f"missing or of another size: {file}", style="red")


def _tables(manifest: Manifest) -> Iterator[Table]:
    names = ("field", "dtype", "shape", "layout", "mean", "std", "range", "remarks")
    yield _table("Fields", names, (_field(manifest, info) for info in manifest.fields))
    splits = (_split(manifest, split) for split in manifest.splits)
    yield _table("Splits", ("split",), splits, ("samples", "share", "shards", "size"))
    shards = (
        (each.file, f"{each.num_samples:,}", decimal(each.num_bytes), each.xxh3_128)
        for each in manifest.shards
    )
    yield _table("Shards", ("shard",), shards, ("samples", "size", "xxh3-128"), _NUM_SHOWN)
    if manifest.classes:
        counts = manifest.class_counts
        classes = (
            (str(index), name, *(f"{each.get(name, 0):,}" for each in counts.values()))
            for index, name in enumerate(manifest.classes)
        )
        yield _table("Classes", ("label", "class"), classes, tuple(counts), _NUM_SHOWN)
    if manifest.quarantined:
        title = f"Quarantined ({len(manifest.quarantined):,})"
        rows = ((Text(each.path), Text(each.reason)) for each in manifest.quarantined)
        yield _table(title, ("file", "reason"), rows, num_shown=_NUM_SHOWN)


def _table(
    title: str,
    words: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    figures: Sequence[str] = (),
    num_shown: int | None = None,
) -> Table:
    """Return a table with columns of words, then of figures, and at most some rows."""
    table, rows = Table(*words, title=title), iter(rows)
    for each in figures:
        table.add_column(each, justify="right")
    for row in islice(rows, num_shown):
        table.add_row(*row)
    if num_more := sum(1 for _ in rows):
        table.add_row(f"… and {num_more:,} more (all with --json)")
    return table


def _field(manifest: Manifest, info: FieldInfo) -> Sequence[str | Text]:
    found, sizes = manifest.statistics.get(info.name), manifest.lengths.get(info.name)
    figures = ("", "", f"{sizes.minimum_bytes:,} to {sizes.maximum_bytes:,} B" if sizes else "")
    if found is not None:
        means, stds = (", ".join(f"{x:.4g}" for x in each) for each in (found.mean, found.std))
        figures = (means, stds, f"{found.minimum:g} to {found.maximum:g}")
    layout = info.layout if info.encoding == "raw" else f"{info.layout}, {info.encoding}"
    shape = "any" if info.layout == "ragged" else _shape(info.shape) or "scalar"
    notes = Text("; ".join(remarks(manifest, info.name)))
    return (info.name, info.dtype, shape, layout, *figures, notes)


def _split(manifest: Manifest, split: str) -> Sequence[str]:
    shards, num_samples = manifest.shards_of(split), manifest.splits[split]
    share = num_samples / max(manifest.num_samples, 1)
    size = decimal(sum(shard.num_bytes for shard in shards))
    return (split, f"{num_samples:,}", f"{share:.1%}", f"{len(shards):,}", size)


def _shape(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _print_shard(summary: ShardSummary, console: Console) -> None:
    console.print(str(summary.path), style="bold")
    console.print(
        f"split {summary.split}, {summary.num_samples:,} samples, {decimal(summary.num_bytes)}"
    )
    arrays = (
        (each.name, each.dtype, _shape(each.shape), f"{each.offset:,}", decimal(each.num_bytes))
        for each in summary.arrays
    )
    console.print(_table("Arrays", ("array", "dtype", "shape"), arrays, ("offset", "size")))
