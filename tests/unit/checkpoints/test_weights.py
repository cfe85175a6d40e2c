"""Trained weights: for another training to begin with, and as files for other programs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule
from safetensors.torch import load_file, save_file
from torch import nn

from headrace.checkpoints.content import read_weights
from headrace.checkpoints.weights import export_weights, load_weights
from headrace.errors import RecipeError, StepError, UserError
from support.command_line import headrace
from support.runs import make_run

PAGE = Path(__file__).parents[3] / "docs/how-to/checkpoints.md"


class Tied(nn.Module):
    """Two names for one weight, a buffer, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(8)

    def forward(self, array):
        return self.second(nn.functional.dropout(self.norm(self.first(array)), 0.5, self.training))


@pytest.fixture
def model() -> Tied:
    made = Tied()
    made(torch.randn(16, 8))  # moves the buffers
    return made.eval()


def test_weights_that_share_memory_are_whole_in_each_format(tmp_path, model):
    wanted = model.state_dict()
    checkpoint = tmp_path / "final.ckpt"
    torch.save({"state_dict": wanted, "global_step": 7}, checkpoint)
    told = headrace("export", str(checkpoint), "-o", str(tmp_path / "a.pt"), "--json")
    done = json.loads(told.stdout)
    assert (done["step"], done["num_tensors"], done["format"]) == (7, 8, "weights")
    assert done["num_values"] == 64 + 4 * 8 + 2 * 8 + 1
    assert done["num_bytes"] == (tmp_path / "a.pt").stat().st_size
    found = torch.load(tmp_path / "a.pt", weights_only=True)
    assert found["first.weight"].data_ptr() == found["second.weight"].data_ptr()
    headrace("export", str(checkpoint), "-o", str(tmp_path / "a.safetensors"))
    headrace("export", str(checkpoint), "-o", str(tmp_path / "a.bin"), "--format", "weights")
    headrace("export", str(checkpoint), "-o", str(tmp_path / "a.pth"))
    assert torch.load(tmp_path / "a.pth").keys() == torch.load(tmp_path / "a.bin").keys()
    for wrong in ("", " ", "a.onnx"):
        with pytest.raises(UserError, match="is not a place for an export"):
            headrace("export", str(checkpoint), "-o", wrong)
    assert len(load_file(tmp_path / "a.safetensors")) == len(wanted) - 1
    again = read_weights(tmp_path / "a.safetensors")
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
        assert torch.equal(again[name], value), name


def test_parts_of_one_tensor_and_what_is_no_tensor(tmp_path):
    whole = torch.arange(6.0)
    parts = {"left": whole[:4], "right": whole[2:], "turned": whole.reshape(2, 3).t()}
    torch.save({"state_dict": parts}, tmp_path / "a.ckpt")
    done = export_weights(tmp_path / "a.ckpt", tmp_path / "a.safetensors", "safetensors")
    assert (done.num_tensors, done.step) == (3, None)
    again = load_file(tmp_path / "a.safetensors")
    assert all(torch.equal(again[name], value) for name, value in parts.items())
    torch.save({"state_dict": {"x": torch.zeros(1), "extra": "words"}}, tmp_path / "b.ckpt")
    with pytest.raises(UserError, match="hold other values than tensors: extra"):
        export_weights(tmp_path / "b.ckpt", tmp_path / "b.pt", "weights")
    assert not list(tmp_path.glob("*b.pt*"))


def test_the_example_makes_a_program_that_needs_no_code(tmp_path, model, monkeypatch):
    """The one of the page, which stands in place of a command."""
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(example.splitlines()) <= 20
    torch.save(model.state_dict(), tmp_path / "model.pt")
    monkeypatch.setitem(sys.modules, "my_model", SimpleNamespace(MyModel=Tied))
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    array = torch.randn(9, 8)
    assert torch.allclose(torch.export.load("model.pt2").module()(array), model(array), atol=1e-6)


def test_a_runs_checkpoint_is_chosen_and_no_file_is_replaced_unasked(tmp_path, headrace_home):
    run = make_run(overrides=(f"dataset.source={headrace_home}",))
    run.folder.checkpoints.mkdir()
    for name in ("final.ckpt", "step-000000003.ckpt"):
        content = {"state_dict": {"w": torch.zeros(2)}, "global_step": len(name)}
        torch.save(content, run.folder.checkpoints / name)
    output = tmp_path / "a.pt"
    words = ("export", run.run_id, "-o", str(output), "--json")
    assert json.loads(headrace(*words).stdout)["checkpoint"].endswith("final.ckpt")
    before = output.read_bytes()
    with pytest.raises(UserError, match=r"a\.pt exists"):
        headrace(*words, "--checkpoint", "3")
    assert output.read_bytes() == before
    done = json.loads(headrace(*words, "--checkpoint", "3", "--force").stdout)
    assert done["checkpoint"].endswith("step-000000003.ckpt")
    with pytest.raises(UserError, match="does not exist"):
        headrace("export", run.run_id, "-o", str(tmp_path / "no" / "a.pt"), "--json")


class Model(LightningModule):
    def __init__(self, classes: int = 3, head: str = "head") -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 8)
        setattr(self, head, torch.nn.Linear(8, classes))


def saved(folder: Path, model: Model) -> Path:
    torch.save({"state_dict": model.state_dict()}, folder / "a.ckpt")
    return folder / "a.ckpt"


def test_another_head_is_named_and_left_out_where_that_is_wanted(tmp_path: Path):
    other, model = Model(classes=3), Model(classes=5)
    own = model.head.weight.clone()
    path = saved(tmp_path, other)
    with pytest.raises(RecipeError) as caught:
        load_weights(model, path)
    assert "head.weight is (3, 8) there and (5, 8) here" in caught.value.what
    assert "init_strict: false, which takes the 2 of 4" in caught.value.hint
    assert not torch.equal(model.body.weight, other.body.weight)
    load_weights(model, path, strict=False)
    assert torch.equal(model.body.weight, other.body.weight)
    assert torch.equal(model.head.weight, own)


def test_what_is_missing_and_what_is_too_much_is_named(tmp_path: Path):
    path = saved(tmp_path, Model(head="top"))
    with pytest.raises(RecipeError, match=r"lacks head\.weight, head\.bias; it has more: top"):
        load_weights(Model(), path)


def test_nothing_that_fits_is_no_beginning(tmp_path: Path):
    torch.save({"state_dict": {"x": torch.zeros(1)}}, tmp_path / "b.ckpt")
    with pytest.raises(RecipeError, match="No weight of"):
        load_weights(Model(), tmp_path / "b.ckpt", strict=False)
    with pytest.raises(StepError, match="missing"):
        load_weights(Model(), tmp_path / "none.ckpt")


@pytest.mark.parametrize("name", ["a.ckpt", "a.pt", "a.safetensors"])
def test_weights_are_taken_of_checkpoints_and_alone(tmp_path: Path, name: str):
    other, model = Model(), Model()
    save = save_file if name.endswith(".safetensors") else torch.save
    state = other.state_dict()
    save({"state_dict": state} if name == "a.ckpt" else state, tmp_path / name)
    load_weights(model, tmp_path / name)
    for key, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[key])


def flip(path: Path, values: torch.Tensor) -> None:
    """Change one bit of one of these values in a file."""
    content = bytearray(path.read_bytes())
    content[bytes(content).index(values.numpy().tobytes()[:40]) + 8] ^= 1
    path.write_bytes(content)


def test_a_bit_that_flipped_is_no_weight(tmp_path: Path):
    """`torch.load` alone would give it to the model."""
    other = Model()
    path = saved(tmp_path, other)
    flip(path, other.body.weight.detach())
    with pytest.raises(StepError, match=r"a\.ckpt is damaged: checksum of .* is wrong"):
        load_weights(Model(), path)


def test_a_torn_or_missing_file_of_weights_is_told(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(StepError, match="missing"):
        load_weights(Model(), path)
    save_file(Model().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(StepError, match=r"a\.safetensors are damaged"):
        load_weights(Model(), path)
    torch.save([1, 2], tmp_path / "b.pt")
    with pytest.raises(StepError, match="holds no weights"):
        load_weights(Model(), tmp_path / "b.pt")
