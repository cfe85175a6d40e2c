"""A trained model as files that other programs open without headrace."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from sklearn.datasets import load_digits

from headrace.errors import HeadraceError, UserError
from headrace.evaluation.merge import SCORES
from headrace.evaluation.predict import predictor_of
from headrace.examples.digits_model import DigitsClassifier
from headrace.objects.store import open_store
from headrace.recipe.load import load_site
from headrace.runs.runs import Run
from headrace.shards.dataset import ShardedDataset
from support.command_line import headrace
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


def digits_run(source: Path, **request: Any) -> Run:
    """A run of the digits with a dataset and a checkpoint, not trained."""
    digits = load_digits()
    pixels = np.rint(digits.images[:200] * 255 / 16).astype(np.uint8)
    dataset = source / "dataset"
    fields = {"image": pixels, "label": digits.target[:200].astype(np.int64)}
    write_dataset(dataset, fields, splits={"train": 160, "test": 40}, classes=NAMES)
    Image.fromarray(pixels[160]).save(source / "raw.png")
    run = make_run(overrides=(f"dataset.source={source}",), **request)
    outputs = {"dataset": str(dataset), "fingerprint": "f00d"}
    step_ended(run, "pack", lease_on_disk(run, "cpu"), 1.0, outputs=outputs)
    scores = {"metrics": {"accuracy": 0.5}}
    step_ended(run, "evaluate", lease_on_disk(run, "gpu"), 1.0, outputs=scores)
    run.folder.checkpoints.mkdir()
    torch.manual_seed(3)
    content = {"state_dict": DigitsClassifier().state_dict(), "global_step": 7}
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


def without(code: str, folder: Path, raw: Path, *hidden: str) -> int:
    """Run the lines of a model card where headrace cannot be imported; print the class."""
    whole = WITHOUT.format(hidden=("headrace", *hidden)) + code
    done = subprocess.run(
        [sys.executable, "-c", whole, str(raw)], cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def snippet(folder: Path) -> str:
    card = (folder / "README.md").read_text()
    (found,) = re.findall(r"^```python\n(.*?)^```$", card, re.M | re.S)
    assert len(found.split("\n\n")[-1].strip().splitlines()) <= 3
    return str(found)


def test_the_folder_predicts_the_same_without_headrace(tmp_path, headrace_home):
    run = digits_run(tmp_path)
    out = tmp_path / "out"
    words = ("export", run.run_id, "-o", str(out), "--json")
    done = json.loads(headrace(*words, "--licence", "apache-2.0").stdout)
    assert (done["program"], done["no_program"]) == ("model.pt2", "")
    assert done["inputs"] == {"image": "uint8 (any, 8, 8)"}
    assert done["outputs"] == {"preds": "float32 (any, 10)"}
    wanted = expected_class(run, tmp_path)
    code = snippet(out).replace(": image", ": torch.from_numpy(image)")
    code += "print(int(outputs['preds'].argmax()))"
    assert without(code, out, tmp_path / "raw.png") == wanted
    known = json.loads((out / "headrace.json").read_text())
    assert known["classes"] == list(NAMES)
    assert known["recipe"]["data"]["transforms"][0]["maximum"] == 255
    card = (out / "README.md").read_text()
    assert card.startswith('---\nlicense: "apache-2.0"\n')
    assert "| accuracy | 0.5 |" in card
    assert known["dataset_fingerprint"] in card
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert not any(str(Path.cwd()).encode() in content for content in files.values())
    with pytest.raises(UserError, match="exists"):
        headrace(*words)
    headrace(*words, "--force", "--licence", "apache-2.0")
    again = {path.name: path.read_bytes() for path in out.iterdir()}
    assert {name for name in files if files[name] != again.get(name)} == set()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_onnx_predicts_the_same_with_onnxruntime_alone(tmp_path, headrace_home):
    pytest.importorskip("onnxruntime")
    run = digits_run(tmp_path)
    out = tmp_path / "out"
    done = json.loads(
        headrace("export", run.run_id, "-o", str(out), "--format", "onnx", "--json").stdout
    )
    assert done["program"] == "model.onnx"
    code = snippet(out) + "print(int(outputs[0].argmax()))"
    found = without(code, out, tmp_path / "raw.png", "torch", "lightning", "onnx")
    assert found == expected_class(run, tmp_path)
    before = (out / "model.onnx").read_bytes()
    assert str(Path.cwd()).encode() not in before
    headrace("export", run.run_id, "-o", str(out), "--format", "onnx", "--force")
    assert (out / "model.onnx").read_bytes() == before


def test_a_failed_export_leaves_what_was_there(tmp_path, headrace_home):
    run = digits_run(tmp_path)
    out = tmp_path / "out"
    headrace("export", run.run_id, "-o", str(out))
    before = (out / "model.pt2").read_bytes()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(UserError, match="holds other files, as thesis"):
        headrace("export", run.run_id, "-o", str(tmp_path / "mine"), "--force")
    (run.folder.checkpoints / "final.ckpt").write_bytes(b"torn")
    with pytest.raises(HeadraceError, match=r"final\.ckpt"):
        headrace("export", run.run_id, "-o", str(out), "--force")
    assert (out / "model.pt2").read_bytes() == before
    (run.folder.checkpoints / "final.ckpt").unlink()
    with pytest.raises(UserError, match="has no checkpoint 'last'"):
        headrace("export", run.run_id, "-o", str(out), "--force")


def test_an_object_store_gets_a_complete_export(
    tmp_path, rclone_server, rclone_bucket, headrace_home
):
    access = rclone_server.options.model_dump(mode="json")
    site = load_site("laptop").model_dump(mode="json", by_alias=True) | {"s3": access}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    run = digits_run(tmp_path, site=str(tmp_path / "site.yaml"))
    words = ("export", run.run_id, "-o", f"{rclone_bucket}/model", "--json")
    done = json.loads(headrace(*words).stdout)
    store = open_store(f"{rclone_bucket}/model", rclone_server.options)
    files = {each.path: each.version for each in store.list_files()}
    assert set(files) == set(done["files"])
    with pytest.raises(UserError, match="exists"):
        headrace(*words)
    store.delete("headrace.json")  # as of an upload that was killed
    assert json.loads(headrace(*words, "--force").stdout)["files"] == done["files"]
