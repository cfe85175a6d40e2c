"""A trained model as a program of `torch.export`, which runs without its Python code."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from headrace.data.checkpoint_content import read_checkpoint
from headrace.data.dataset import SampleReader, reading_of
from headrace.data.targets import Allowed, instantiate, instantiate_all
from headrace.data.transforms import Batch, apply
from headrace.errors import HeadraceError, RecipeError, UserCodeError, nearest
from headrace.files.atomic import AS_USUAL, replacing
from headrace.files.layout import RunFolder
from headrace.recipe.dataset import TRAIN
from headrace.recipe.recipe import Recipe
from headrace.shards.dataset import ShardedDataset
from headrace.steps.context import resolved
from headrace.training.export import Exported
from headrace.training.init_weights import differences

_MOST_SAMPLES = 4
_NO_INPUT = ("label", "sample_id")
_EXAMPLE = "Set self.example_input_array in the model, an example of what forward takes."


def export_program(run: RunFolder, checkpoint: Path, output: Path, dataset: str | None) -> Exported:
    """Export `forward` of a run's model with trained weights, in evaluation mode.

    It is traced with the model's `example_input_array`, as Lightning has it, or with samples of
    the dataset after `data.transforms`: fields that have the names of forward's arguments, or the
    only one there is. The number of samples stays open where the model lets it.

    Args:
        run: Whose recipe has the model.
        checkpoint: Of Lightning.
        output: File, which is replaced; `torch.export.load` reads it.
        dataset: Folder of the packed dataset; None when nobody knows.

    Raises:
        RecipeError: There is no model, or no example of what forward takes.
        UserCodeError: The weights do not fit the model, or it cannot be exported; with the trace.
    """
    recipe, site = resolved(run)
    allowed = Allowed.of(recipe, site)
    if recipe.model is None:
        raise RecipeError(f"Recipe '{recipe.name}' has no model", "Take --format weights.")
    torch.manual_seed(recipe.seed)
    model: LightningModule = instantiate(recipe.model, allowed, "model")
    content = read_checkpoint(checkpoint, pickled=site.pickled_checkpoints == "allow")
    _take(model, content["state_dict"], checkpoint)
    example = _example(model, recipe, allowed, dataset)
    program = _traced(model.eval(), example)
    with replacing(output, AS_USUAL) as file:
        torch.export.save(program, file)
    values = program.state_dict.values()
    return Exported(
        path=str(output),
        format="torch-export",
        num_bytes=output.stat().st_size,
        num_tensors=len(values),
        num_values=sum(value.numel() for value in values),
        checkpoint=str(checkpoint),
        step=content.get("global_step"),
        inputs=_inputs(program),
    )


def _take(model: LightningModule, weights: Mapping[str, Tensor], checkpoint: Path) -> None:
    model.configure_model()
    told = differences(model.state_dict(), weights)
    if told:
        raise UserCodeError(
            f"The weights of {checkpoint} do not fit {type(model).__name__}: {told}",
            "Export with the code that the model was trained with.",
        )
    model.load_state_dict(weights)


def _example(
    model: LightningModule, recipe: Recipe, allowed: Allowed, dataset: str | None
) -> dict[str, Any]:
    """Arguments of forward by name."""
    given = model.example_input_array
    if given is None:
        return _chosen(model, _batch(recipe, allowed, dataset))
    if isinstance(given, Mapping):
        return dict(given)
    each = given if isinstance(given, tuple) else (given,)
    return dict(inspect.signature(model.forward).bind(*each).arguments)


def _batch(recipe: Recipe, allowed: Allowed, dataset: str | None) -> Batch:
    if dataset is None or not Path(dataset).expanduser().is_dir():
        raise RecipeError(f"The dataset {dataset or ''} is no folder of this machine", _EXAMPLE)
    held = ShardedDataset(Path(dataset).expanduser(), TRAIN, fold=recipe.data.fold)
    transforms = instantiate_all(recipe.data.transforms, allowed, "data.transforms")
    reader = SampleReader(held, reading_of(recipe.data, allowed))
    return apply(transforms, reader.read(np.arange(min(_MOST_SAMPLES, len(reader)))))


def _chosen(model: LightningModule, batch: Batch) -> dict[str, Any]:
    parameters = inspect.signature(model.forward).parameters.values()
    wanted = [each.name for each in parameters if each.default is each.empty]
    if all(name in batch for name in wanted):
        return {name: batch[name] for name in wanted}
    fields = [name for name in batch if name not in _NO_INPUT]
    if len(wanted) == len(fields) == 1:
        return {wanted[0]: batch[fields[0]]}
    lacking = next(name for name in wanted if name not in batch)
    raise RecipeError(
        f"forward of {type(model).__name__} takes '{lacking}', which is no field of the dataset",
        f"{nearest(lacking, fields)} {_EXAMPLE}",
    )


def _traced(model: LightningModule, example: Mapping[str, Any]) -> torch.export.ExportedProgram:
    shapes = {name: _open(value) for name, value in example.items()}
    try:
        with torch.no_grad():
            return torch.export.export(model, (), dict(example), dynamic_shapes=shapes)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(
            f"forward of {type(model).__name__} cannot be exported: {type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else ''}",
            "torch.export follows tensors only: choose by torch.where or torch.cond in place of "
            "`if` on their values. Or take --format weights.",
            trace="".join(traceback.format_exception(error)),
        ) from error


def _open(value: object) -> object:
    """Which sizes may change: the number of samples, where the model lets it."""
    if isinstance(value, Tensor):
        return {0: torch.export.Dim.AUTO} if value.ndim else None
    if isinstance(value, Mapping):
        return {name: _open(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_open(part) for part in value)
    return None


def _inputs(program: torch.export.ExportedProgram) -> dict[str, str]:
    names = program.graph_signature.user_inputs
    found = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in names and isinstance(value, Tensor):
            sizes = [str(size) if type(size) is int else "batch" for size in value.shape]
            found[node.name] = f"{str(value.dtype).removeprefix('torch.')} ({', '.join(sizes)})"
    return found
