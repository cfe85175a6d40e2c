"""A trained model as a folder for programs without headrace, also for Hugging Face."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from headrace.checkpoints.weights import export_weights
from headrace.data.transforms import SAMPLE_ID, Batch
from headrace.errors import DataError, UserError
from headrace.evaluation.predict import predictor_of
from headrace.evaluation.predictor import Predictor
from headrace.evaluation.write_report import split_on_node
from headrace.files.atomic import write_text
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.record import Record

_EXAMPLES = 8
_RTOL, _ATOL = 1e-3, 1e-4
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
_PLAIN = """\
from safetensors.torch import load_model

load_model(model, "model.safetensors")  # `model`: an object of the class, made by config.json"""
_PROGRAM = """\
import torch

outputs = torch.export.load("model.pt2").module()({inputs})"""
_ONNX = """\
import onnxruntime

outputs = onnxruntime.InferenceSession("model.onnx").run(None, {inputs})"""


class Source(Record):
    """What an exported model comes from."""

    name: str
    """The run, or a trial as `SUITE:NUMBER`."""
    dataset: str
    """Folder or URL of the packed dataset."""
    checkpoint: str
    metrics: dict[str, float]
    facts: dict[str, str]
    """What the model card says about the training."""
    licence: str = ""


class Model(Record):
    """What was written."""

    path: str
    files: tuple[str, ...]
    num_bytes: int
    inputs: dict[str, str]
    """Dtype and shape of each input; the first axis is the batch."""
    outputs: dict[str, str]
    largest_difference: float | None = None
    """Largest difference between the file's outputs and PyTorch's on a batch; null without one."""
    no_program: str = ""
    """Why there is no `model.pt2`; empty if there is one."""


class _Program(nn.Module):
    """From stored samples to the model's outputs: `data.transforms`, then its `predict_step`."""

    def __init__(self, predictor: Predictor, batch: Batch, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self._predictor, self._batch, self._names = (
            predictor.model, predictor, batch, names,
        )  # fmt: skip

    def forward(self, *fields: Tensor) -> Any:
        """Return the outputs for a batch of fields."""
        given = dict(zip(self._names, fields, strict=True))
        return self._predictor.outputs({**self._batch, **given})


def export_model(
    recipe: Recipe, site: Site, source: Source, folder: Path, *, onnx: bool = False
) -> Model:
    """Write weights, program, signature, preprocessing and model card into a folder; check them.

    Raises:
        UserError: ONNX cannot hold the model, or its packages are missing.
        DataError: The dataset is empty, or a file does not give the model's outputs.
    """
    missing = [name for name in _PACKAGES if onnx and importlib.util.find_spec(name) is None]
    if missing:
        hint = "Install them: pip install 'headrace[export]'"
        raise UserError(f"--format onnx needs {', '.join(missing)}", hint)
    checkpoint = Path(source.checkpoint)
    pickled = site.pickled_checkpoints == "allow"
    export_weights(checkpoint, folder / "model.safetensors", "safetensors", pickled=pickled)
    spec = (recipe.evaluate or EvaluateSpec()).variants[0]
    difference, why, program = None, "", None
    with split_on_node(recipe, site, source.dataset, spec.split, None) as split:
        predictor = predictor_of(recipe, site, checkpoint, split, spec)
        batch = next(predictor.batches(0, min(_EXAMPLES, len(split))))
        manifest = split.manifest
    try:
        program, inputs, wanted = _traced(predictor, batch)
    except Exception as error:  # of torch, or of the model's own code while it is traced
        why = f"torch.export does not take this model: {str(error).strip().splitlines()[0]}"
        if onnx:
            hint = "Export without --format onnx: the weights need the model's class."
            raise UserError(why, hint) from error
        inputs, wanted = _tensors(batch), _named(predictor.outputs(batch))
    else:
        with _quiet():
            torch.export.save(program, folder / "model.pt2")
        with torch.inference_mode(), _quiet():
            found = torch.export.load(folder / "model.pt2").module()(*inputs.values())
        difference = _difference(wanted, _named(found), "model.pt2")
    if onnx and program is not None:
        difference = _write_onnx(program, inputs, wanted, folder / "model.onnx")
    config = recipe.model.as_config() if recipe.model else {}
    known = {
        "format": 1,
        "model": config.get("_target_"),
        "classes": list(manifest.classes),
        "inputs": _signature(inputs),
        "outputs": _signature(wanted),
        "fields": [each.model_dump(mode="json") for each in manifest.fields],
        "packed_with": recipe.pack.model_dump(mode="json", include={"images", "fields"}),
        "transforms": [each.as_config() for each in recipe.data.transforms],
        "transforms_are_in_the_program": not why,
        "metrics": source.metrics,
        "dataset_fingerprint": manifest.fingerprint,
        "source": source.name,
    }
    _write_json(folder / "headrace.json", known)
    arguments = {key: value for key, value in config.items() if not key.startswith("_")}
    _write_json(folder / "config.json", arguments)
    snippet = _snippet(tuple(inputs), onnx=onnx, program=not why)
    write_text(folder / "README.md", _card(recipe, source, snippet, manifest.fingerprint, why))
    files = sorted(path.name for path in folder.iterdir())
    return Model(
        path=str(folder),
        files=tuple(files),
        num_bytes=sum((folder / name).stat().st_size for name in files),
        inputs=_signature(inputs),
        outputs=_signature(wanted),
        largest_difference=difference,
        no_program=why,
    )


def _tensors(batch: Batch) -> dict[str, Tensor]:
    return {
        name: value
        for name, value in batch.items()
        if isinstance(value, Tensor) and name not in (SAMPLE_ID, "label")
    }


def _traced(
    predictor: Predictor, batch: Batch
) -> tuple[ExportedProgram, dict[str, Tensor], dict[str, Tensor]]:
    """Return the program of the fields that the model uses, with these, and its outputs."""
    given = _tensors(batch)
    first = _trace(predictor, batch, given)
    nodes = {node.name: node for node in first.graph.nodes}
    used = zip(given, first.graph_signature.user_inputs, strict=True)
    inputs = {name: given[name] for name, node in used if nodes[str(node)].users}
    program = _trace(predictor, batch, inputs) if len(inputs) < len(given) else first
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # holds paths of this machine
    with torch.inference_mode():
        return program, inputs, _named(predictor.outputs(batch))


def _trace(predictor: Predictor, batch: Batch, inputs: Mapping[str, Tensor]) -> ExportedProgram:
    made = _Program(predictor, batch, tuple(inputs)).eval()
    any_number = tuple({0: Dim.AUTO} for _ in inputs)
    with torch.no_grad(), _quiet():
        return torch.export.export(made, tuple(inputs.values()), dynamic_shapes=(any_number,))


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore warnings of PyTorch about its own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _named(outputs: Any) -> dict[str, Tensor]:
    if isinstance(outputs, Tensor):
        return {"output": outputs}
    parts = outputs.items() if isinstance(outputs, Mapping) else enumerate(outputs)
    return {str(name): value for name, value in parts if isinstance(value, Tensor)}


def _signature(values: Mapping[str, Tensor]) -> dict[str, str]:
    return {
        name: f"{str(value.dtype).removeprefix('torch.')} {('batch', *value.shape[1:])}".replace(
            "'", ""
        )
        for name, value in values.items()
    }


def _difference(wanted: Mapping[str, Tensor], found: Mapping[str, Any], file: str) -> float:
    """Return the largest difference; raise a `DataError` if it exceeds the tolerance."""
    pairs = zip(wanted.values(), found.values(), strict=True)
    numbers = [(np.asarray(a.detach().cpu(), float), np.asarray(b, float)) for a, b in pairs]
    largest = max((float(np.abs(a - b).max()) for a, b in numbers if a.size), default=0.0)
    if not all(np.allclose(a, b, rtol=_RTOL, atol=_ATOL, equal_nan=True) for a, b in numbers):
        raise DataError(
            f"{file} does not give the model's outputs: they differ by up to {largest:g}, valid: "
            f"{_ATOL:g} + {_RTOL:g} of the value",
            "Export the weights alone: --format safetensors.",
        )
    return largest


def _write_onnx(
    program: ExportedProgram, inputs: Mapping[str, Tensor], wanted: Mapping[str, Tensor], file: Path
) -> float:
    import onnx
    import onnxruntime

    try:
        with _quiet():
            names = list(inputs), list(wanted)
            made: Any = torch.onnx.export(
                program, (), input_names=names[0], output_names=names[1], verbose=False
            )
    except Exception as error:
        why = str(error.__cause__ or error).strip().splitlines()[0]
        what = f"ONNX does not take this model: {why}"
        raise UserError(what, "Export without --format onnx, and use model.pt2.") from error
    proto = made.model_proto
    for node in (*proto.graph.node, *(node for each in proto.functions for node in each.node)):
        del node.metadata_props[:]  # hold paths of this machine
    onnx.save(proto, file)
    session = onnxruntime.InferenceSession(file)
    given = {name: value.cpu().numpy() for name, value in inputs.items()}
    return _difference(wanted, dict(zip(wanted, session.run(None, given), strict=True)), file.name)


def _snippet(names: tuple[str, ...], *, onnx: bool, program: bool) -> str:
    if onnx:
        inputs = ", ".join(f'"{name}": {name}' for name in names)
        return _ONNX.format(inputs=f"{{{inputs}}}")
    return _PROGRAM.format(inputs=", ".join(names)) if program else _PLAIN


def _card(recipe: Recipe, source: Source, snippet: str, fingerprint: str, why: str) -> str:
    front: dict[str, Any] = {"library_name": "pytorch", "tags": ["headrace"]}
    if source.licence:
        front = {"license": source.licence, **front}
    text: str = _template().render(
        front=yaml.safe_dump(front, sort_keys=False),
        name=recipe.name,
        lead=f"Trained by headrace: {source.name}.",
        snippet=snippet,
        why=why,
        has_program=not why,
        metrics=source.metrics,
        facts={"Dataset fingerprint": fingerprint, **source.facts},
        recipe=yaml.safe_dump(
            json.loads(recipe.model_dump_json(include={"model", "data", "trainer", "seed"})),
            sort_keys=False,
        ),
    )
    return text


@cache
def _template() -> Any:
    loader = PackageLoader("headrace.evaluation", "")
    made = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True,
        autoescape=False,
    )  # fmt: skip
    return made.get_template("model_card.md.jinja")


def _write_json(file: Path, content: object) -> None:
    write_text(file, json.dumps(content, indent=2, sort_keys=True, default=str) + "\n")
