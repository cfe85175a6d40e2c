"""A trained model as a folder for programs without headrace, also for Hugging Face."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import torch
import yaml
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from headrace.checkpoints.weights import export_weights
from headrace.errors import DataError, UserCodeError, blaming_user_code
from headrace.evaluation.merge import SCORES
from headrace.evaluation.predict import predictor_of
from headrace.evaluation.predictor import Predictor
from headrace.evaluation.write_report import split_on_node
from headrace.files.atomic import write_text
from headrace.files.layout import RunFolder
from headrace.files.manifest import FieldInfo
from headrace.recipe.evaluate import EvaluateSpec
from headrace.record import Record
from headrace.steps.context import resolved

FILES = "model.safetensors", "model.pt2", "model.onnx", "config.json", "README.md", "headrace.json"
"""Files of an export. The last is written last: an export without it is incomplete."""

_WEIGHTS, _PT2, _ONNX, _CONFIG, _CARD, _MODEL = FILES
_EXAMPLES = 8
_HINT = (
    "`model.safetensors` of --format folder can be used with the model's class. A program can be "
    "made of a `predict_step` that has tensors alone and torch operations on them."
)


class Model(Record):
    """Content of `headrace.json`: what the receiver of an exported model has to know."""

    source: str
    """The run, or a trial as `SUITE:NUMBER`."""
    licence: str
    metrics: dict[str, float]
    training: dict[str, str]
    """Checkpoint, code, machine, cost, energy and seed, for the reader."""
    recipe: dict[str, Any] = {}
    """Its `model`, `data`, `trainer` and `seed`, and of `pack` what makes fields of files."""
    classes: tuple[str, ...] = ()
    fields: tuple[FieldInfo, ...] = ()
    dataset_fingerprint: str = ""
    program: str = ""
    """The file that the model card loads; `data.transforms` are part of it."""
    no_program: str = ""
    """Why there is none; empty if there is one."""
    inputs: dict[str, str] = {}
    """Dtype and shape of each input of the program."""
    outputs: dict[str, str] = {}


class _Program(nn.Module):
    """`data.transforms`, then the model's `predict_step`."""

    def __init__(self, predictor: Predictor, batch: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self._predictor, self._batch = predictor.model, predictor, batch
        self.ragged = {x.name for x in predictor.dataset.manifest.fields if x.layout == "ragged"}

    def forward(self, given: dict[str, Any]) -> dict[str, Tensor]:
        """Return the outputs by name; fields that are not given are those of the batch."""
        found: Any = self._predictor.outputs({**self._batch, **given})
        parts = {SCORES: found} if isinstance(found, Tensor) else found
        items = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
        return {str(name): value for name, value in items if isinstance(value, Tensor)}


def export_model(
    run: RunFolder, checkpoint: Path, dataset: str, model: Model, folder: Path, *, onnx: bool
) -> Model:
    """Write the files of an export into a folder; return `model`, completed.

    Raises:
        UserCodeError: The model cannot be exported as ONNX, and `onnx` is set.
        DataError: A program gives other outputs than the model.
    """
    recipe, site = resolved(run)
    trainer = recipe.trainer.model_copy(update={"accelerator": "cpu"})
    here, spec = recipe.model_copy(update={"trainer": trainer}), recipe.evaluate or EvaluateSpec()
    pickled = site.pickled_checkpoints == "allow"
    export_weights(checkpoint, folder / _WEIGHTS, "safetensors", pickled=pickled)
    with split_on_node(recipe, site, dataset, spec.variants[0].split, None) as split:
        predictor = predictor_of(here, site, checkpoint, split, spec.variants[0])
        batch = next(predictor.batches(0, min(_EXAMPLES, len(split))))
    made_by: Any = {"pack": {"images", "fields"}}
    made_by |= dict.fromkeys(("model", "data", "trainer", "seed"), True)
    done = model.model_copy(
        update={
            "recipe": recipe.model_dump(mode="json", by_alias=True, include=made_by),
            "classes": split.manifest.classes,
            "fields": split.manifest.fields,
            "dataset_fingerprint": split.manifest.fingerprint,
            **_write_programs(predictor, batch, folder, onnx=onnx),
        }
    )
    arguments = {key: it for key, it in done.recipe["model"].items() if not key.startswith("_")}
    write_text(folder / _CONFIG, json.dumps(arguments, indent=1) + "\n")
    template = jinja2.Template(
        Path(__file__).with_name("model_card.md.jinja").read_text(),
        undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    shown = {"name": recipe.name, "recipe": yaml.safe_dump(done.recipe, sort_keys=False)}
    write_text(folder / _CARD, template.render(model=done, **shown))
    write_text(folder / _MODEL, done.model_dump_json(indent=1) + "\n")
    return done


@torch.no_grad()
def _write_programs(
    predictor: Predictor, batch: Mapping[str, Any], folder: Path, *, onnx: bool
) -> dict[str, Any]:
    """Write programs that give the model's outputs; return what a `Model` says about them."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    whole = _Program(predictor, tensors).eval()
    with blaming_user_code("predict_step", _HINT):
        wanted = whole(dict(batch))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch about its own code
        try:
            with blaming_user_code("torch.export", _HINT):
                program, inputs = _traced(whole, tensors)
        except (UserCodeError, DataError) as error:  # the latter: it takes a field of no tensors
            if onnx:
                raise
            return {"no_program": error.what.splitlines()[0]}
        torch.export.save(program, folder / _PT2)
        _check(_PT2, torch.export.load(folder / _PT2).module()(inputs), wanted)
        if onnx:
            with blaming_user_code("ONNX", _HINT):
                found = _through_onnx(program, inputs, list(wanted), folder / _ONNX)
            _check(_ONNX, found, wanted)
    signature = program.graph_signature
    return {
        "program": _ONNX if onnx else _PT2,
        "inputs": _described(program, inputs, signature.user_inputs),
        "outputs": _described(program, wanted, signature.user_outputs),
    }


def _traced(whole: _Program, given: dict[str, Tensor]) -> tuple[ExportedProgram, dict[str, Tensor]]:
    """Return the program for any number of samples, and the fields that it uses."""
    shapes: dict[str, Any] = {
        name: {0: Dim.DYNAMIC} | ({1: Dim.AUTO} if name in whole.ragged else {}) for name in given
    }
    program = torch.export.export(whole, (given,), dynamic_shapes=(shapes,))
    users = {node.name: node.users for node in program.graph.nodes}
    names = zip(given, program.graph_signature.user_inputs, strict=True)
    used = {name: given[name] for name, node in names if users[str(node)]}
    if len(used) < len(given):
        return _traced(whole, used)
    program.example_inputs = None  # samples of the dataset
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # holds paths of this machine
    return program, given


def _through_onnx(
    program: ExportedProgram, inputs: Mapping[str, Tensor], names: list[str], file: Path
) -> dict[str, Tensor]:
    """Write the program as ONNX; return its outputs by ONNX Runtime."""
    import onnx
    import onnxruntime

    made: Any = torch.onnx.export(
        program, (), input_names=list(inputs), output_names=names, verbose=False
    )
    proto = made.model_proto
    for node in (*proto.graph.node, *(node for each in proto.functions for node in each.node)):
        del node.metadata_props[:]  # hold paths of this machine
    onnx.save(proto, file)
    given = {name: value.numpy() for name, value in inputs.items()}
    found = onnxruntime.InferenceSession(file).run(None, given)
    return {name: torch.from_numpy(value) for name, value in zip(names, found, strict=True)}


def _check(file: str, found: object, wanted: Mapping[str, Tensor]) -> None:
    try:
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4, equal_nan=True)
    except AssertionError as error:
        what = f"{file} does not give the model's outputs: {error}"
        raise DataError(what, "Export the weights alone: --format safetensors.") from error


def _described(
    program: ExportedProgram, names: Mapping[str, Tensor], nodes: Sequence[object]
) -> dict[str, str]:
    """Return dtype and shape of inputs or outputs by name, as `uint8 (any, 8, 8)`."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    found = [values[str(node)] for node in nodes]
    axes = [["any" if isinstance(n, torch.SymInt) else str(n) for n in x.shape] for x in found]
    dtypes = [str(value.dtype).removeprefix("torch.") for value in found]
    return {
        name: f"{dtype} ({', '.join(shape)})"
        for name, dtype, shape in zip(names, dtypes, axes, strict=True)
    }
