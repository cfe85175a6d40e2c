"""Receivers of an export in environments of their own; `make real-export` (PyPI, 1 GB, minutes)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import headrace
from support.exports import class_without_headrace, digits_run, expected_class, snippet
from support.ports import find_free_port
from support.waiting import wait_until

_UV = Path(sys.executable).with_name("uv")


@pytest.fixture
def made_by_uv() -> Iterator[Path]:
    """A folder for environments."""
    folder = tempfile.mkdtemp(prefix="hrx-", dir="/tmp")
    yield Path(folder)
    shutil.rmtree(folder)


def environment(folder: Path, *packages: str) -> str:
    """Make an environment without headrace; return its Python."""
    python = str(folder / "bin" / "python")
    subprocess.run([_UV, "venv", "--quiet", folder], check=True)
    subprocess.run([_UV, "pip", "install", "--quiet", "--python", python, *packages], check=True)
    listed = [_UV, "pip", "list", "--python", python]
    print(subprocess.run(listed, check=True, capture_output=True, text=True).stdout)
    return python


def test_three_packages_predict_the_same_class(tmp_path, headrace_home, made_by_uv):
    run, out = digits_run(tmp_path), tmp_path / "out"
    headrace("export", run.run_id, "-o", str(out), "--format", "onnx")
    python = environment(made_by_uv / "env", "onnxruntime", "numpy", "pillow")
    code = snippet(out) + "print(int(outputs[0].argmax()))"
    found = class_without_headrace(code, out, tmp_path / "raw.png", python=python)
    assert found == expected_class(run, tmp_path)


_HUB = """
import sys
from huggingface_hub import PyTorchModelHubMixin
from headrace.examples.digits_model import DigitsClassifier
class Hub(DigitsClassifier, PyTorchModelHubMixin): pass
import numpy, torch
from PIL import Image
model = Hub.from_pretrained(sys.argv[1]).eval()
image = torch.from_numpy(numpy.array(Image.open(sys.argv[2]))) / 255
assert model.learning_rate == 0.003
print(int(model(image[None]).argmax()))
"""


def test_hugging_face_opens_the_folder_offline(tmp_path, headrace_home, made_by_uv):
    run, out = digits_run(tmp_path), tmp_path / "out"
    headrace("export", run.run_id, "-o", str(out))
    install = [_UV, "pip", "install", "--quiet", "--target", made_by_uv, "huggingface_hub"]
    subprocess.run([*install, "--python", sys.executable], check=True)
    print(sorted(path.name for path in made_by_uv.glob("*.dist-info")))
    done = subprocess.run(
        [sys.executable, "-c", _HUB, out, tmp_path / "raw.png"], check=True, text=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(made_by_uv), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert int(done.stdout.split()[-1]) == expected_class(run, tmp_path)


_DOWNLOADED = """
import os
import mlflow
os.chdir(mlflow.artifacts.download_artifacts("models:/numbers/1"))
"""


def test_an_mlflow_server_registers_an_export(tmp_path, headrace_home, made_by_uv, monkeypatch):
    python = environment(made_by_uv / "env", "mlflow==3.17.2", "onnxruntime", "pillow")
    address = f"http://127.0.0.1:{(port := find_free_port())}"
    command = [
        python, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db",
        "--artifacts-destination", tmp_path / "artifacts", "--host", "127.0.0.1",
        "--port", str(port), "--workers", "1",
    ]  # fmt: skip
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
    try:
        wait_until(lambda: _answers(f"{address}/health"), 180, "the server")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        run = digits_run(tmp_path)
        words = ("export", run.run_id, "-o", "models:/numbers", "--format", "onnx", "--json")
        done = json.loads(headrace(*words).stdout)
        assert done["path"] == "models:/numbers/1"
        headrace("export", run.run_id, "-o", str(tmp_path / "out"), "--format", "onnx")
        code = _DOWNLOADED + snippet(tmp_path / "out") + "print(int(outputs[0].argmax()))"
        found = class_without_headrace(code, tmp_path, tmp_path / "raw.png", python=python)
        assert found == expected_class(run, tmp_path)
    finally:
        server.terminate()
        server.wait(60)


def _answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(url, timeout=5).status == 200)
    except OSError:
        return False
