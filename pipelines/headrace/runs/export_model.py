"""A trained model as a folder for programs without headrace, also for Hugging Face."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
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
from headrace.files.atomic import write_json, write_text
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.recipe.evaluate import EvaluateSpec
from headrace.record import as_json_values
from headrace.runs.origin import Origin
from headrace.steps.context import resolved

FILES = (
    "model.safetensors", "model.pt2", "model.onnx", "model.onnx.data", "config.json", "README.md",
    "headrace.json",
)  # fmt: skip
"""Files of an export. The last is written last: an export without it is incomplete."""

_WEIGHTS, _PT2, _ONNX, _, _CONFIG, _CARD, _MODEL = FILES
_EXAMPLES = 8
_compare = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4, equal_nan=True)
_HINT = (
    "A program can be made of a `predict_step` of torch operations on tensors. The weights can be "
    "used with the model's class: --format folder or safetensors."
)


class _Program(nn.Module):
    """`data.transforms`, then the model's `predict_step`."""

    def __init__(self, predictor: Predictor, batch: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self._predictor, self._batch = predictor.model, predictor, batch
        self.ragged = {x.name for x in predictor.dataset.manifest.fields if x.layout == "ragged"}

    def forward(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the outputs by name; fields that are not given are those of the batch."""
        found: Any = self._predictor.outputs({**self._batch, **given})
        parts = {SCORES: found} if isinstance(found, Tensor) else found
        items = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
        return {str(name): value for name, value in items if isinstance(value, Tensor)}


def export_model(of: Origin, checkpoint: Path, folder: Path, *, onnx: bool) -> str:
    """Write the files of an export into a folder.

    Returns:
        Why it lacks a program that runs without the model's class; empty if it holds one.

    Raises:
        UserCodeError: `onnx` is set, and no ONNX program gives the model's outputs.
    """
    site = resolved(RunFolder(Path(of.folder)))[1]
    trainer = of.recipe.trainer.model_copy(update={"accelerator": "cpu"})
    recipe = of.recipe.model_copy(update={"trainer": trainer})
    spec = (recipe.evaluate or EvaluateSpec()).variants[0]
    pickled = site.pickled_checkpoints == "allow"
    export_weights(checkpoint, folder / _WEIGHTS, "safetensors", pickled=pickled)
    with split_on_node(recipe, site, of.dataset, spec.split, None) as split:
        predictor = predictor_of(recipe, site, checkpoint, split, spec)
        batch = next(predictor.batches(0, min(_EXAMPLES, len(split))))
    made_by: Any = dict.fromkeys(("model", "data", "trainer", "seed"), True)
    made_by["pack"] = {"images", "fields"}
    written = of.recipe.model_dump(mode="json", by_alias=True, include=made_by)
    model = {
        "source": of.name,
        "metrics": as_json_values(of)["metrics"],
        "recipe": written,
        "classes": split.manifest.classes,
        "fields": [as_json_values(each) for each in split.manifest.fields],
        "dataset_fingerprint": split.manifest.fingerprint,
        **_write_programs(predictor, batch, folder, onnx=onnx),
    }
    write_json(folder / _CONFIG, {k: v for k, v in written["model"].items() if k[0] != "_"})
    template = jinja2.Template(
        Path(__file__).with_name("model_card.md.jinja").read_text(),
        undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    run_id, _, trial = of.name.partition(":")
    sums = open_ledger().usage_sums("trial" if trial else None, run_id=run_id)
    shown = {
        "used": next((each for each in sums if each.name in ("", trial)), None),
        "checkpoint": checkpoint.name,
        "recipe": yaml.safe_dump(written, sort_keys=False),
    }
    write_text(folder / _CARD, template.render(model=model, of=of, **shown))
    write_json(folder / _MODEL, model)
    return str(model["no_program"])


@torch.no_grad()
def _write_programs(
    predictor: Predictor, batch: Mapping[str, Any], folder: Path, *, onnx: bool
) -> dict[str, Any]:
    """Write programs that give the model's outputs as read from their files; describe them."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    whole = _Program(predictor, tensors).eval()
    with blaming_user_code("predict_step", _HINT):
        wanted = whole(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch about its own code
        try:
            with blaming_user_code("torch.export", _HINT):
                program, inputs = _traced(whole, tensors)
                torch.export.save(program, folder / _PT2)
                _compare(torch.export.load(folder / _PT2).module()(inputs), wanted)
        except (UserCodeError, DataError) as error:  # the latter: it lacks a field, as text
            if onnx:
                raise
            (folder / _PT2).unlink(missing_ok=True)
            why = error.what.splitlines()[0]
            return {"program": "", "no_program": why, "inputs": {}, "outputs": {}}
        if onnx:
            with blaming_user_code("ONNX", f"It needs 'headrace[export]'. {_HINT}"):
                names: Any = {"input_names": list(inputs), "output_names": list(wanted)}
                made: Any = torch.onnx.export(program, (), verbose=False, **names)
                for node in made.model.graph.all_nodes():
                    node.metadata_props.clear()  # hold paths of this machine
                made.save(folder / _ONNX)
                _compare(dict(zip(wanted, made(inputs), strict=True)), wanted)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    given, results = program.graph_signature.user_inputs, program.graph_signature.user_outputs
    return {
        "program": _ONNX if onnx else _PT2,
        "no_program": "",
        "inputs": _types(inputs, (values[str(node)] for node in given)),
        "outputs": _types(wanted, (values[str(node)] for node in results)),
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


def _types(names: Iterable[str], values: Iterable[Any]) -> dict[str, str]:
    """Return dtype and shape by name, as `uint8 (any, 8, 8)`."""
    shown = [f"{value.dtype} {tuple(value.shape)}".removeprefix("torch.") for value in values]
    return {name: re.sub(r"\bs\d+\b", "any", it) for name, it in zip(names, shown, strict=True)}
