"""Runs whose models are exported, and what the receiver does with them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from PIL import Image
from sklearn.datasets import load_digits

from headrace.evaluation.merge import SCORES
from headrace.evaluation.predict import predictor_of
from headrace.examples.digits_model import DigitsClassifier
from headrace.runs.runs import Run
from headrace.shards.dataset import ShardedDataset
from support.past_runs import step_ended
from support.runs import lease_on_disk, make_run
from support.shards import write_dataset

WITHOUT = """\
import sys
class Hidden:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {hidden!r}: raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
import numpy
from PIL import Image
image = numpy.stack([numpy.array(Image.open(sys.argv[1]))])
"""
"""Python whose headrace is hidden, with the raw file `image` read."""

NAMES = tuple("0123456789")


def digits_run(source: Path, *overrides: str, **request: Any) -> Run:
    """A run of the digits with a dataset and a checkpoint, not trained."""
    digits = load_digits()
    pixels = np.rint(digits.images[:200] * 255 / 16).astype(np.uint8)
    fields = {"image": pixels, "label": digits.target[:200].astype(np.int64)}
    write_dataset(source / "dataset", fields, splits={"train": 160, "test": 40}, classes=NAMES)
    Image.fromarray(pixels[160]).save(source / "raw.png")
    torch.manual_seed(3)
    return run_of(source, DigitsClassifier(), *overrides, **request)


def run_of(source: Path, model: LightningModule, *overrides: str, **request: Any) -> Run:
    """A run of the dataset in a folder, whose checkpoint is of a model."""
    dataset = source / "dataset"
    run = make_run(overrides=(f"dataset.source={source}", *overrides), **request)
    outputs = {"dataset": str(dataset), "fingerprint": "f00d"}
    step_ended(run, "pack", lease_on_disk(run, "cpu"), 1.0, outputs=outputs)
    scores = {"metrics": {"accuracy": 0.5}}
    step_ended(run, "evaluate", lease_on_disk(run, "gpu"), 1.0, outputs=scores)
    run.folder.checkpoints.mkdir()
    content = {"state_dict": model.state_dict(), "global_step": 7}
    torch.save(content, run.folder.checkpoints / "final.ckpt")
    return run


def expected_class(run: Run, source: Path) -> int:
    """What the evaluation gives for the first sample of the split."""
    split = ShardedDataset(source / "dataset", "test")
    assert run.recipe.evaluate is not None
    spec = run.recipe.evaluate.variants[0]
    checkpoint = run.folder.checkpoints / "final.ckpt"
    part = predictor_of(run.recipe, run.site, checkpoint, split, spec).predict(0, 1)
    return int(np.asarray(part.columns[SCORES])[0].argmax())


def class_without_headrace(
    code: str, folder: Path, raw: Path, *hidden: str, python: str = sys.executable
) -> int:
    """Run the lines of a model card where headrace cannot be imported; print the class."""
    whole = WITHOUT.format(hidden=("headrace", *hidden)) + code
    done = subprocess.run(
        [python, "-c", whole, str(raw)], cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def snippet(folder: Path) -> str:
    """The three lines of the model card that load the model."""
    card = (folder / "README.md").read_text()
    (found,) = re.findall(r"^```python\n(.*?)^```$", card, re.M | re.S)
    assert len(found.split("\n\n")[-1].strip().splitlines()) <= 3
    return str(found)
