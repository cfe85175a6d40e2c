"""The command export: a trained model as files for other programs."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import redirect_stdout
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from headrace.cli import arguments
from headrace.cli.console import JsonOption, open_console, tell_json
from headrace.errors import UserError, blaming_user_code
from headrace.files.layout import RunFolder, run_of
from headrace.objects.store import open_store
from headrace.runs.names import with_model
from headrace.runs.origin import Origin, origin
from headrace.steps.context import resolved

_REGISTRY = "models:/"


class Format(str, Enum):
    """What can be written; typer before 0.19 does not support `Literal`."""

    FOLDER = "folder"
    ONNX = "onnx"
    WEIGHTS = "weights"
    SAFETENSORS = "safetensors"

    __str__ = str.__str__


_BY_SUFFIX = {
    ".pt": Format.WEIGHTS, ".pth": Format.WEIGHTS, ".safetensors": Format.SAFETENSORS
}  # fmt: skip


def export(
    what: Annotated[str, arguments.a_run("Run, SUITE, SUITE:NUMBER, or file.", "RUN|FILE")],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder, s3:// prefix, models:/NAME, or a file.")
    ],
    form: Annotated[
        Format | None, typer.Option("--format", help="Default: by the suffix of the output.")
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="Of a run: best, last, or a number of steps. Default: best, if any.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace what exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a trained model for programs without headrace.

    Formats: **folder** (default), which Hugging Face opens too: weights (`model.safetensors`), a
    program of `torch.export` (`model.pt2`), classes, signature and preprocessing (`headrace.json`),
    the model's arguments (`config.json`), and a model card (`README.md`); **onnx**, the same with
    `model.onnx`; **weights**, one file, a `state_dict` for `torch.load(…, weights_only=True)`
    (default for `.pt` and `.pth`); **safetensors**, one file without pickle (`.safetensors`). A
    folder goes to a path, an object store, or as `models:/NAME` to the registry of the MLflow
    server at `MLFLOW_TRACKING_URI`.

    Examples:
        headrace export digits-20260102-030405-0a1b2c3d -o digits
        headrace export SUITE -o best-trial
        headrace export RUN --checkpoint best --format onnx -o s3://models/digits
        headrace export RUN --format onnx -o models:/digits
        headrace export path/to/final.ckpt -o weights.pt --force --json
    """
    from headrace.checkpoints.files import chosen
    from headrace.checkpoints.weights import WeightsFormat, export_weights

    form = form or _format_of(output)
    is_folder, found = form in (Format.FOLDER, Format.ONNX), Path(what).expanduser().absolute()
    if found.exists() and (checkpoint or is_folder):
        option = "--checkpoint" if checkpoint else f"--format {form}"
        hint = "Name the run, or take --format weights or safetensors without --checkpoint."
        raise UserError(f"{option} needs the id of a run, not the file {what}", hint)
    target = Path(output).expanduser().absolute()
    if target.exists() and (target.is_dir() != is_folder or not force):
        raise UserError(f"{output} exists", "Name another, or replace its like with --force.")
    if found.exists():
        of, run, file = None, run_of(found), found
    else:
        model, checkpoint = with_model(what, checkpoint)
        of, run = origin(model.name), model.folder
        file = chosen(run, checkpoint)
    if of is not None and is_folder:
        done = _export_folder(of, file, output, force=force, onnx=form is Format.ONNX)
    else:
        if not target.parent.is_dir():
            what = f"The folder {target.parent} does not exist"
            raise UserError(what, "Make it, or name another of this machine.")
        pickled = run is not None and resolved(run)[1].pickled_checkpoints == "allow"
        one_file: WeightsFormat = "weights" if form is Format.WEIGHTS else "safetensors"
        done = export_weights(file, target, one_file, pickled=pickled).model_dump()
    tell_json(done) if as_json else _tell(**done)


def _format_of(output: str) -> Format:
    """Return the format of a place without `--format`; raise if it looks like none."""
    if not output.strip() or Path(output).suffix == ".onnx":
        hint = "Name a folder; with --format onnx it has model.onnx."
        raise UserError(f"--output '{output}' is not a place for an export", hint)
    return _BY_SUFFIX.get(Path(output).suffix, Format.FOLDER)


def _export_folder(
    of: Origin, checkpoint: Path, output: str, *, force: bool, onnx: bool
) -> dict[str, Any]:
    """Write an export into a temporary folder, then to its place; return what was written."""
    from headrace.runs.export_model import FILES, export_model

    store = None
    if not output.startswith(_REGISTRY):
        store = open_store(output, resolved(RunFolder(Path(of.folder)))[1].s3)
        for name in store.list_names():
            if not force or name not in FILES:
                hint = "Name another, or replace an earlier export with --force."
                raise UserError(f"{output} exists and holds {name}", hint)
    with tempfile.TemporaryDirectory() as made:
        no_program = export_model(of, checkpoint, Path(made), onnx=onnx)
        sizes = {each.name: each.stat().st_size for each in sorted(Path(made).iterdir())}
        if store is None:
            output = _register(made, output, of)
        else:
            store.delete(FILES[-1])  # no export, until it is written again
            for name in FILES:
                store.upload(Path(made, name), name) if name in sizes else store.delete(name)
    done = {"path": output, "num_bytes": sum(sizes.values())}
    return {**done, "files": list(sizes), "no_program": no_program}


def _register(folder: str, output: str, of: Origin) -> str:
    """Add an export to the training's run in MLflow, or to a new one; return its version."""
    run, name = of.name.replace(":", "-"), output.removeprefix(_REGISTRY)
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        raise UserError(f"{output} needs an MLflow server", "Set MLFLOW_TRACKING_URI.")
    hint = "It needs 'headrace[mlflow]' and MLFLOW_TRACKING_URI."
    with blaming_user_code("MLflow", hint), redirect_stdout(sys.stderr):  # it prints addresses
        import mlflow

        client, wanted = mlflow.MlflowClient(), f"tags.`mlflow.runName` = '{run}'"
        experiment_name = os.environ.get("MLFLOW_EXPERIMENT_NAME", of.recipe.name)
        experiment = mlflow.set_experiment(experiment_name).experiment_id
        found = client.search_runs([experiment], wanted, max_results=1)
        logged = found[0] if found else client.create_run(experiment, run_name=run)
        client.log_artifacts(logged.info.run_id, folder, "model")
        if not found:
            client.set_terminated(logged.info.run_id)
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        place = f"{logged.info.artifact_uri}/model"
        made = client.create_model_version(name, place, logged.info.run_id)
    return f"{output}/{made.version}"


def _tell(path: str, num_bytes: int, **others: object) -> None:
    console = open_console()
    console.print(f"{path}: {decimal(num_bytes)}")
    for name, value in others.items():
        if value:
            console.print(f"  {name}: {value}")
