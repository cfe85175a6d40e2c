"""The command export: a trained model as files for other programs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from headrace.cli import arguments
from headrace.cli.console import JsonOption, open_console, tell_json
from headrace.errors import UserError
from headrace.files.atomic import publish_folder
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.objects.store import is_remote, open_store
from headrace.runs.costs import run_cost
from headrace.runs.origin import Origin, origin
from headrace.steps.context import resolved

if TYPE_CHECKING:
    from headrace.checkpoints.weights import Exported
    from headrace.evaluation.export import Model
    from headrace.objects.protocol import Store
    from headrace.recipe.site import StoreOptions


class Format(str, Enum):
    """What can be written; typer before 0.19 does not support `Literal`."""

    FOLDER = "folder"
    ONNX = "onnx"
    WEIGHTS = "weights"
    SAFETENSORS = "safetensors"

    __str__ = str.__str__


def export(  # noqa: PLR0913  one for each option
    what: Annotated[str, arguments.a_run("Id of a run, or a file.", "RUN|CHECKPOINT")],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder, s3:// prefix or file.")],
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.FOLDER,
    checkpoint: Annotated[
        str, typer.Option(help="Of a run: best, last, or a number of steps. Default: best, if any.")
    ] = "",
    licence: Annotated[str, typer.Option(help="Licence for the model card, as apache-2.0.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace what exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a trained model for programs without headrace.

    Formats: **folder**, which Hugging Face opens too: weights (`model.safetensors`), a program of
    `torch.export` (`model.pt2`), classes, signature and preprocessing (`headrace.json`), the
    model's arguments (`config.json`), and a model card (`README.md`); **onnx**, the same with
    `model.onnx`; **weights**, one file, a `state_dict` for `torch.load(…, weights_only=True)`;
    **safetensors**, one file without pickle. It is written completely or not at all.

    Examples:
        headrace export digits-20260102-030405-0a1b2c3d -o digits
        headrace export RUN --checkpoint best --format onnx -o s3://models/digits
        headrace export path/to/final.ckpt --format weights -o weights.pt --force --json
    """
    is_folder = form in (Format.FOLDER, Format.ONNX)
    found = Path(what).expanduser().absolute()
    if found.exists():
        if checkpoint:
            raise UserError("--checkpoint needs the id of a run, not a file", "Leave it out.")
        if is_folder:
            hint = "Name the run, or take --format weights or safetensors."
            raise UserError(f"--format {form} needs the id of a run, not the file {what}", hint)
        run, file, of = _run_of(found), found, None
    else:
        from headrace.checkpoints.files import chosen

        of = origin(what)
        run = RunFolder(Path(of.folder))
        file = chosen(run, checkpoint)
    s3 = resolved(run)[1].s3 if run is not None else None
    with _written(output, s3, force=force, is_folder=is_folder) as target:
        done: Model | Exported
        if of is not None and run is not None and is_folder:
            from headrace.evaluation.export import Source, export_model

            source = Source(
                name=what, dataset=of.dataset, checkpoint=str(file), metrics=of.metrics,
                facts=_facts(of, what), licence=licence,
            )  # fmt: skip
            done = export_model(of.recipe, resolved(run)[1], source, target, onnx=form == "onnx")
        else:
            from headrace.checkpoints.weights import WeightsFormat, export_weights

            pickled = run is not None and resolved(run)[1].pickled_checkpoints == "allow"
            one_file: WeightsFormat = "weights" if form is Format.WEIGHTS else "safetensors"
            done = export_weights(file, target, one_file, pickled=pickled)
    done = done.model_copy(update={"path": output})
    tell_json(done) if as_json else _tell(done)


@contextmanager
def _written(
    output: str, s3: StoreOptions | None, *, force: bool, is_folder: bool
) -> Iterator[Path]:
    """Yield a temporary path whose content gets the name `output` when the block ends well."""
    if is_remote(output):
        if not is_folder:
            raise UserError(f"{output} is no local file", "Object stores take --format folder.")
        with _uploaded(open_store(output, s3), force=force) as folder:
            yield folder
        return
    target = Path(output).expanduser().absolute()
    if target.exists() and not force:
        raise _exists(output)
    if not target.parent.is_dir():
        raise UserError(f"The folder {target.parent} does not exist", "Make it, or name another.")
    if target.exists() and target.is_dir() != is_folder:
        raise UserError(f"{output} is {'no ' * is_folder}folder", "Name another.")
    if is_folder:
        with _replaced(target) as folder:
            yield folder
    else:
        yield target


@contextmanager
def _uploaded(store: Store, *, force: bool) -> Iterator[Path]:
    if not force and store.stat(_LAST) is not None:
        raise _exists(store.url)
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        store.delete(_LAST)  # readers look for it first
        for path in sorted(Path(folder).iterdir(), key=lambda path: path.name == _LAST):
            store.upload(path, path.name)


@contextmanager
def _replaced(target: Path) -> Iterator[Path]:
    if target.exists() and any(target.iterdir()) and not (target / _LAST).exists():
        raise UserError(f"{target} holds other files than an export", "Name another folder.")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        made, before = Path(folder, "new"), Path(folder, "old")
        made.mkdir()
        yield made
        if target.exists():
            target.rename(before)
        if not publish_folder(made, target):
            raise _exists(str(target))


_LAST = "headrace.json"
"""File of a folder that is uploaded last: an export without it is incomplete."""


def _exists(output: str) -> UserError:
    return UserError(f"{output} exists", "Name another, or replace it with --force.")


def _facts(of: Origin, what: str) -> dict[str, str]:
    """Return what the model card says about the training; a trial's cost is its suite's."""
    cost, rows = run_cost(what), open_ledger().usage(what.partition(":")[0])
    wh = [each for row in rows for each in (row.energy_wh, row.cpu_energy_wh) if each is not None]
    git = of.made_with.git
    known = {
        "Code": "unknown" if git is None else git.commit + " and changes" * git.dirty,
        "Machine": "; ".join(of.machine.values()),
        "Machine hours": f"{cost.hours:.3g}" if cost else "",
        "Cost": f"${cost.usd:.4g}" if cost and not cost.unpriced else "",
        "Energy": f"{sum(wh) / 1000:.4g} kWh" if wh else "",
        "Seed": str(of.recipe.seed),
    }
    return {key: value or "unknown" for key, value in known.items()}


def _run_of(checkpoint: Path) -> RunFolder | None:
    """Return the run in whose folder of checkpoints a file lies; None if there is none."""
    run = RunFolder(checkpoint.parent.parent)
    return run if checkpoint.parent == run.checkpoints and run.recipe.exists() else None


def _tell(done: Exported | Model) -> None:
    console = open_console()
    console.print(f"{done.path}: {decimal(done.num_bytes)}")
    for name, value in done.model_dump(exclude={"path", "num_bytes"}, exclude_none=True).items():
        if value:
            console.print(f"  {name}: {value}")
