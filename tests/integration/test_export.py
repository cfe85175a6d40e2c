"""A trained model as files that other programs open without headrace."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from numpy.typing import NDArray

from headrace.errors import HeadraceError, UserCodeError, UserError
from headrace.examples.digits_model import DigitsClassifier
from headrace.files.atomic import write_record
from headrace.files.manifest import FieldInfo
from headrace.objects.store import open_store
from headrace.recipe.load import load_site
from headrace.runs.runs import Run
from headrace.shards.dataset import ShardedDataset
from headrace.suites.points import trial_recipe
from headrace_bench.shards import ShardWriter
from support import exported_models
from support.command_line import headrace
from support.exports import (
    NAMES,
    class_without_headrace,
    digits_run,
    expected_class,
    run_of,
    snippet,
)
from support.runs import make_run
from support.shards import write_fields
from support.suite_journal import added, ended, journal, started


def test_the_folder_predicts_the_same_without_headrace(tmp_path, headrace_home):
    run = digits_run(tmp_path)
    out = tmp_path / "out"
    words = ("export", run.run_id, "-o", str(out), "--json")
    done = json.loads(headrace(*words).stdout)
    assert done["no_program"] == ""
    wanted = expected_class(run, tmp_path)
    code = snippet(out).replace(": image", ": torch.from_numpy(image)")
    code += "print(int(outputs['preds'].argmax()))"
    assert class_without_headrace(code, out, tmp_path / "raw.png") == wanted
    known = json.loads((out / "headrace.json").read_text())
    assert known["classes"] == list(NAMES)
    assert known["program"] == "model.pt2"
    assert known["inputs"] == {"image": "uint8 (any, 8, 8)"}
    assert known["outputs"] == {"preds": "float32 (any, 10)"}
    assert known["recipe"]["data"]["transforms"][0]["maximum"] == 255
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: pytorch\n")
    assert "| accuracy | 0.5 |" in card
    assert known["dataset_fingerprint"] in card
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert not any(str(Path.cwd()).encode() in content for content in files.values())
    with pytest.raises(UserError, match="exists"):
        headrace(*words)
    headrace(*words, "--force")
    again = {path.name: path.read_bytes() for path in out.iterdir()}
    assert {name for name in files if files[name] != again.get(name)} == set()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_onnx_predicts_the_same_with_onnxruntime_alone(tmp_path, headrace_home):
    run = digits_run(tmp_path)
    out = tmp_path / "out"
    done = json.loads(
        headrace("export", run.run_id, "-o", str(out), "--format", "onnx", "--json").stdout
    )
    assert "model.onnx" in done["files"]
    code = snippet(out) + "print(int(outputs[0].argmax()))"
    found = class_without_headrace(code, out, tmp_path / "raw.png", "torch", "lightning", "onnx")
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
    with pytest.raises(UserError, match="holds thesis"):
        headrace("export", run.run_id, "-o", str(tmp_path / "mine"), "--force")
    (run.folder.checkpoints / "final.ckpt").write_bytes(b"torn")
    with pytest.raises(HeadraceError, match=r"final\.ckpt"):
        headrace("export", run.run_id, "-o", str(out), "--force")
    assert (out / "model.pt2").read_bytes() == before
    (run.folder.checkpoints / "final.ckpt").unlink()
    with pytest.raises(UserError, match="has no checkpoint 'last'"):
        headrace("export", run.run_id, "-o", str(out), "--force")


ROW, SOUND, WORDS = (
    FieldInfo(name="row", dtype="float32", shape=(3,), layout="fixed"),
    FieldInfo(name="sound", dtype="float32", layout="ragged", ndim=1),
    FieldInfo(name="words", dtype="uint8", layout="ragged", encoding="text"),
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    """A folder with a dataset of a table's rows, sound and text."""
    folder = tmp_path_factory.mktemp("mixed")
    random = np.random.default_rng(3)

    def add(writer: ShardWriter, ids: NDArray[np.int64]) -> None:
        writer.add_fixed("row", random.normal(size=(len(ids), 3)).astype(np.float32))
        sounds = [random.normal(size=5 + index % 4).astype(np.float32) for index in ids]
        writer.add_arrays("sound", sounds)
        writer.add_ragged("words", [b"one two" for _ in ids], encoding="text")
        writer.add_fixed("label", ids % 2)

    label = FieldInfo(name="label", dtype="int64", layout="fixed")
    splits = {"train": 20, "test": 12}
    write_fields(folder / "dataset", (ROW, SOUND, WORDS, label), add, splits=splits)
    return folder


def model_run(folder: Path, mixed: Path, name: str, *overrides: str) -> Run:
    """A run of a model of `support.exported_models`."""
    site = load_site("laptop").model_dump(mode="json", by_alias=True)
    listed = site | {"allowed_targets": ["support.exported_models.*"]}
    (folder / "site.yaml").write_text(yaml.safe_dump(listed))
    words = (
        f"model={{_target_: support.exported_models.{name}}}", "data.transforms=[]",
        "data.pad=0", *overrides,
    )  # fmt: skip
    return run_of(mixed, getattr(exported_models, name)(), *words, site=str(folder / "site.yaml"))


@pytest.mark.parametrize(
    ("name", "overrides", "inputs", "outputs"),
    [
        ("Table", (), {"row": "float32 (any, 3)"},
         {"preds": "float32 (any,)", "width": "float32 (any,)"}),
        ("Pair", ("data.batch=[row,label]",), {"row": "float32 (any, 3)"},
         {"preds": "float32 (any, 2)"}),
        ("OfShape", ("data.batch=[row,label]",), {"row": "float32 (any, 3)"},
         {"preds": "float32 (any, 2)"}),
        ("Sound", (), {"sound": "float32 (any, any)"}, {"preds": "float32 (any, 2)"}),
    ],
)  # fmt: skip
def test_fields_of_each_kind_are_inputs(
    tmp_path, headrace_home, mixed, name, overrides, inputs, outputs
):
    run, out = model_run(tmp_path, mixed, name, *overrides), tmp_path / "out"
    headrace("export", run.run_id, "-o", str(out), "--format", "onnx")
    known = json.loads((out / "headrace.json").read_text())
    assert (known["inputs"], known["outputs"]) == (inputs, outputs)
    (field,) = inputs
    given = torch.randn((5, 9) if field == "sound" else (5, 3))
    program = torch.export.load(out / "model.pt2").module()
    session = onnxruntime.InferenceSession(out / "model.onnx")
    found = session.run(None, {field: given.numpy()})
    for wanted, each in zip(program({field: given}).values(), found, strict=True):
        np.testing.assert_allclose(each, wanted.detach(), rtol=1e-3, atol=1e-4)
    sample = ShardedDataset(mixed / "dataset", "test").gather("row", np.array([0])).tobytes()
    assert not any(sample in path.read_bytes() for path in out.iterdir())


@pytest.mark.parametrize(
    ("name", "refuses", "why"),
    [
        ("Words", "torch.export", "KeyError: 'words'"),
        ("Branch", "torch.export", "data-dependent"),
        ("Eight", "torch.export", "Constraints violated"),
        ("Random", "torch.export", "Tensor-likes are not close"),
        ("Eigenvalues", "ONNX", "eigh"),
    ],
)
def test_a_model_without_a_program_is_exported_as_weights_or_refused_with_the_reason(
    tmp_path, headrace_home, mixed, name, refuses, why
):
    run, out = model_run(tmp_path, mixed, name), tmp_path / "out"
    with pytest.raises(UserCodeError, match=rf"(?s){refuses} raised .*{why}") as refused:
        headrace("export", run.run_id, "-o", str(out), "--format", "onnx")
    assert "--format folder" in refused.value.hint
    assert not out.exists()
    done = json.loads(headrace("export", run.run_id, "-o", str(out), "--json").stdout)
    assert ("model.pt2" in done["files"]) == (refuses == "ONNX")
    assert (refuses in done["no_program"]) == (refuses != "ONNX")
    if refuses != "ONNX":
        assert done["no_program"] in (out / "README.md").read_text()


def test_a_run_without_a_dataset_is_refused_by_name(tmp_path, headrace_home):
    run = make_run(overrides=(f"dataset.source={tmp_path}",))
    run.folder.checkpoints.mkdir()
    content = {"state_dict": DigitsClassifier().state_dict(), "global_step": 7}
    torch.save(content, run.folder.checkpoints / "final.ckpt")
    with pytest.raises(HeadraceError, match="dataset"):
        headrace("export", run.run_id, "-o", str(tmp_path / "out"))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file exists"):
        headrace("export", run.run_id, "-o", str(tmp_path / "file"), "--force")


KILLED = """\
import os, sys
from headrace.objects.store import LocalStore
upload = LocalStore.upload
def killed(store, source, path, tick=None):
    if path == "config.json":
        os.kill(os.getpid(), 9)
    upload(store, source, path, tick)
LocalStore.upload = killed
from headrace.cli.app import main
main()
"""


def test_a_killed_export_leaves_none_and_is_repeated(tmp_path, headrace_home):
    run, out = digits_run(tmp_path), tmp_path / "out"
    words = ("export", run.run_id, "-o", str(out), "--force")
    out.mkdir()
    (out / "headrace.json").write_text("{}")  # of an earlier export
    done = subprocess.run([sys.executable, "-c", KILLED, *words], check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL
    left = {path.name: path.read_bytes() for path in out.iterdir()}
    assert left.keys() == {"model.safetensors", "model.pt2"}
    headrace(*words)
    after = {path.name: path.read_bytes() for path in out.iterdir()}
    assert left.items() <= after.items()
    assert after.keys() - left.keys() == {"config.json", "README.md", "headrace.json"}


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # by MLflow
def test_a_model_is_registered_with_the_run_of_its_training(tmp_path, headrace_home, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    run = digits_run(tmp_path)
    words = ("export", run.run_id, "-o", "models:/numbers", "--json")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match=r"models:/numbers needs an MLflow server"):
        headrace(*words)
    monkeypatch.chdir(tmp_path)  # artifacts lie below it
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    trained = client.create_run(client.create_experiment("digits"), run_name=run.run_id)
    assert [json.loads(headrace(*words).stdout)["path"] for _ in range(2)] == [
        "models:/numbers/1", "models:/numbers/2",
    ]  # fmt: skip
    assert client.get_model_version("numbers", "2").run_id == trained.info.run_id
    got = Path(
        mlflow.artifacts.download_artifacts("models:/numbers/2", dst_path=str(tmp_path / "got"))
    )
    assert {path.name for path in got.iterdir()} == {
        "model.safetensors", "model.pt2", "config.json", "README.md", "headrace.json",
    }  # fmt: skip
    assert json.loads((got / "headrace.json").read_text())["source"] == run.run_id


def test_an_object_store_gets_a_complete_export(
    tmp_path, rclone_server, rclone_bucket, headrace_home
):
    """Of a suite's best trial, with the options of the suite's site."""
    access = rclone_server.options.model_dump(mode="json")
    site = load_site("laptop").model_dump(mode="json", by_alias=True) | {"s3": access}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    grid = "suite.grid={seed: [1, 2]}"
    suite = digits_run(tmp_path, grid, kind="suite", site=str(tmp_path / "site.yaml"))
    for number, accuracy in ((1, 0.5), (2, 0.9)):
        trial, values = suite.folder.trial(number), {"seed": number}
        source = json.loads(suite.folder.source.read_bytes())
        write_record(trial.recipe, trial_recipe(source, values))
        write_record(trial.site, suite.site)
        shutil.copytree(suite.folder.checkpoints, trial.checkpoints)
        journal(suite.folder, added(number, seed=number), started(number), ended(number, accuracy))
    words = ("export", suite.run_id, "-o", f"{rclone_bucket}/model", "--json")
    done = json.loads(headrace(*words).stdout)
    store = open_store(f"{rclone_bucket}/model", rclone_server.options)
    assert {each.path for each in store.list_files()} == set(done["files"])
    known = json.loads(store.read("headrace.json"))
    assert (known["source"], known["recipe"]["seed"]) == (f"{suite.run_id}:2", 2)
    with pytest.raises(UserError, match="exists"):
        headrace(*words)
    store.delete("headrace.json")  # as of an upload that was killed
    assert json.loads(headrace(*words, "--force").stdout)["files"] == done["files"]
    headrace("export", f"{suite.run_id}:1", "-o", str(tmp_path / "out"))
    assert json.loads((tmp_path / "out/headrace.json").read_text())["recipe"]["seed"] == 1
