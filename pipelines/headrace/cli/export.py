"""The command export: a trained model as files for other programs."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from headrace.cli import arguments
from headrace.cli.console import JsonOption, open_console, tell_json
from headrace.errors import UserError
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.objects.store import open_store
from headrace.runs.origin import Origin, origin
from headrace.steps.context import resolved

if TYPE_CHECKING:
    from headrace.objects.protocol import Store

_REGISTRY = "models:/"
_ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


class Format(str, Enum):
    """What can be written; typer before 0.19 does not support `Literal`."""

    FOLDER = "folder"
    ONNX = "onnx"
    WEIGHTS = "weights"
    SAFETENSORS = "safetensors"

    __str__ = str.__str__


def export(  # noqa: PLR0913  one for each option
    what: Annotated[str, arguments.a_run("Id of a run, or a file.", "RUN|CHECKPOINT")],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder, s3:// prefix, models:/NAME, or a file.")
    ],
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
    **safetensors**, one file without pickle. A folder goes to a path, an object store, or as
    `models:/NAME` to the registry of the MLflow server at `MLFLOW_TRACKING_URI`.

    Examples:
        headrace export digits-20260102-030405-0a1b2c3d -o digits
        headrace export RUN --checkpoint best --format onnx -o s3://models/digits
        headrace export RUN --format onnx -o models:/digits
        headrace export path/to/final.ckpt --format weights -o weights.pt --force --json
    """
    from headrace.checkpoints.files import chosen
    from headrace.checkpoints.weights import WeightsFormat, export_weights

    is_folder, found = form in (Format.FOLDER, Format.ONNX), Path(what).expanduser().absolute()
    if found.exists() and (checkpoint or is_folder):
        option = "--checkpoint" if checkpoint else f"--format {form}"
        hint = "Name the run, or take --format weights or safetensors without --checkpoint."
        raise UserError(f"{option} needs the id of a run, not the file {what}", hint)
    of = None if found.exists() else origin(what)
    run = _run_of(found) if of is None else RunFolder(Path(of.folder))
    file = found if of is None or run is None else chosen(run, checkpoint)
    if of is not None and is_folder:
        done = _export_folder(of, file, output, licence, force=force, onnx=form is Format.ONNX)
    else:
        target = Path(output).expanduser().absolute()
        if target.exists() and not force:
            raise _exists(output)
        if not target.parent.is_dir():
            hint = "Make it, or name another. One file is written to a folder of this machine."
            raise UserError(f"The folder {target.parent} does not exist", hint)
        pickled = run is not None and resolved(run)[1].pickled_checkpoints == "allow"
        one_file: WeightsFormat = "weights" if form is Format.WEIGHTS else "safetensors"
        done = export_weights(file, target, one_file, pickled=pickled).model_dump()
    tell_json(done) if as_json else _tell(**done)


def _export_folder(
    of: Origin, checkpoint: Path, output: str, licence: str, *, force: bool, onnx: bool
) -> dict[str, Any]:
    """Write an export into a temporary folder, then to its place; return what was written."""
    from headrace.evaluation.export import FILES, Model, export_model

    run, is_registered = RunFolder(Path(of.folder)), output.startswith(_REGISTRY)
    needed = (*(_ONNX_PACKAGES if onnx else ()), *(("mlflow",) if is_registered else ()))
    if missing := [each for each in needed if importlib.util.find_spec(each) is None]:
        hint = "Install: pip install 'headrace[export,mlflow]'"
        raise UserError(f"Packages are missing: {', '.join(missing)}", hint)
    if not of.dataset:
        hint = "Take --format weights or safetensors."
        raise UserError(f"{of.name} has no packed dataset, whose samples are the inputs", hint)
    store = None if is_registered else open_store(output, resolved(run)[1].s3)
    if store is not None:
        _check_free(store, FILES, force=force)
    facts = {"Checkpoint": checkpoint.name, **_training(of)}
    model = Model(source=of.name, licence=licence, metrics=of.metrics, training=facts)
    with tempfile.TemporaryDirectory() as folder:
        made = export_model(run, checkpoint, of.dataset, model, Path(folder), onnx=onnx)
        sizes = {each.name: each.stat().st_size for each in sorted(Path(folder).iterdir())}
        if store is not None:
            _publish(Path(folder), store, FILES)
        else:
            output = _register(folder, output, of)
    content = made.model_dump(include={"program", "no_program", "inputs", "outputs"})
    return {"path": output, "num_bytes": sum(sizes.values()), "files": list(sizes), **content}


def _check_free(store: Store, files: tuple[str, ...], *, force: bool) -> None:
    if store.folder is not None and store.folder.is_file():
        raise UserError(f"{store.url} is a file", "Name a folder, or take --format weights.")
    for name in store.list_names():
        if name not in files:
            raise UserError(f"{store.url} holds other files, as {name}", "Name another folder.")
        if not force:
            raise _exists(store.url)


def _publish(folder: Path, store: Store, files: tuple[str, ...]) -> None:
    """Replace an export; a process that is killed meanwhile leaves none with the last file."""
    store.delete(files[-1])
    for name in files:
        made = folder / name
        store.upload(made, name) if made.exists() else store.delete(name)


def _register(folder: str, output: str, of: Origin) -> str:
    """Add an export to the training's run in MLflow, or to a new one; return its version."""
    import mlflow

    if not os.environ.get("MLFLOW_TRACKING_URI"):
        raise UserError(f"{output} needs an MLflow server", "Set MLFLOW_TRACKING_URI.")
    run = of.name.replace(":", "-")
    wanted = f"tags.`mlflow.runName` = '{run}'"
    try:
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", of.recipe.name))
        found = mlflow.search_runs(filter_string=wanted, max_results=1, output_format="list")
        run_id = found[0].info.run_id if found else None
        with mlflow.start_run(run_id, run_name=run) as active:
            mlflow.log_artifacts(folder, "model")
        made = mlflow.register_model(
            f"runs:/{active.info.run_id}/model", output.removeprefix(_REGISTRY)
        )
    except mlflow.MlflowException as error:
        raise UserError(f"MLflow did not take the model: {error}", "See its server.") from error
    return f"{_REGISTRY}{made.name}/{made.version}"


def _exists(output: str) -> UserError:
    return UserError(f"{output} exists", "Name another, or replace it with --force.")


def _training(of: Origin) -> dict[str, str]:
    """Return what the model card says about the training of a run or trial."""
    run_id, _, number = of.name.partition(":")
    sums = open_ledger().usage_sums("trial" if number else None, run_id=run_id)
    used = next((each for each in sums if each.name in ("", number)), None)
    git = of.made_with.git
    known = {
        "Code": git and git.commit + " and changes" * git.dirty,
        "Machine": "; ".join(of.machine.values()),
        "Machine hours": used and f"{used.node_s / 3600:.3g}",
        "Cost": used and used.usd is not None and not used.unpriced and f"${used.usd:.4g}",
        "Energy": used and used.energy_wh is not None and f"{used.energy_wh / 1000:.4g} kWh",
        "Seed": str(of.recipe.seed),
    }
    return {key: value or "unknown" for key, value in known.items()}


def _run_of(checkpoint: Path) -> RunFolder | None:
    """Return the run in whose folder of checkpoints a file lies; None if there is none."""
    run = RunFolder(checkpoint.parent.parent)
    return run if checkpoint.parent == run.checkpoints and run.recipe.exists() else None


def _tell(path: str, num_bytes: int, **others: object) -> None:
    console = open_console()
    console.print(f"{path}: {decimal(num_bytes)}")
    for name, value in others.items():
        if value:
            console.print(f"  {name}: {value}")
