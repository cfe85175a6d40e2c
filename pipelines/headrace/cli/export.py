"""The command export: trained weights as files for other programs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from headrace.cli import arguments
from headrace.cli.console import JsonOption, open_console, tell_json
from headrace.errors import UserError
from headrace.files.layout import RunFolder
from headrace.runs.on_disk import there
from headrace.steps.context import resolved

if TYPE_CHECKING:
    from headrace.checkpoints.weights import Exported


class Format(str, Enum):
    """What can be written; typer before 0.19 does not support `Literal`."""

    WEIGHTS = "weights"
    SAFETENSORS = "safetensors"

    __str__ = str.__str__


def export(
    what: Annotated[str, arguments.a_run("Id of a run, or a file.", "RUN|CHECKPOINT")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.WEIGHTS,
    checkpoint: Annotated[
        str, typer.Option(help="Of a run: best, last, or a number of steps. Default: best, if any.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write trained weights for other programs.

    The file is written completely or not at all. Formats: **weights**, a `state_dict` for
    `torch.load(…, weights_only=True)`; **safetensors**, without pickle.

    Examples:
        headrace export digits-20260102-030405-0a1b2c3d -o digits.pt
        headrace export RUN --checkpoint best --format safetensors -o digits.safetensors
        headrace export path/to/final.ckpt -o weights.pt --force --json
    """
    output = output.expanduser().absolute()
    if output.exists() and not force:
        raise UserError(f"{output} exists", "Name another file, or replace it with --force.")
    if not output.parent.is_dir():
        raise UserError(f"The folder {output.parent} does not exist", "Make it, or name another.")
    found = Path(what).expanduser().absolute()
    if found.exists():
        if checkpoint:
            raise UserError("--checkpoint needs the id of a run, not a file", "Leave it out.")
        run, file = _run_of(found), found
    else:
        from headrace.checkpoints.files import chosen

        run = RunFolder(Path(there(what).folder))
        file = chosen(run, checkpoint)
    from headrace.checkpoints.weights import export_weights

    pickled = run is not None and resolved(run)[1].pickled_checkpoints == "allow"
    done = export_weights(file, output, form.value, pickled=pickled)
    tell_json(done) if as_json else _tell(done)


def _run_of(checkpoint: Path) -> RunFolder | None:
    """Return the run in whose folder of checkpoints a file lies; None if there is none."""
    run = RunFolder(checkpoint.parent.parent)
    return run if checkpoint.parent == run.checkpoints and run.recipe.exists() else None


def _tell(done: Exported) -> None:
    console = open_console()
    step = "" if done.step is None else f", after {done.step:,} steps"
    console.print(f"{done.path}: {decimal(done.num_bytes)}, {done.format}")
    console.print(f"{done.num_values:,} values in {done.num_tensors:,} tensors{step}")
    console.print(f"from {done.checkpoint}")
