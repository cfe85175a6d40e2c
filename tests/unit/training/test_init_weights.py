"""Weights of another training, to begin with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from safetensors.torch import save_file

from headrace.errors import RecipeError, StepError
from headrace.training.init_weights import load_weights


class Model(LightningModule):
    def __init__(self, classes: int = 3, head: str = "head") -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 8)
        setattr(self, head, torch.nn.Linear(8, classes))


def saved(folder: Path, model: Model) -> Path:
    torch.save({"state_dict": model.state_dict()}, folder / "a.ckpt")
    return folder / "a.ckpt"


def test_all_weights_are_taken(tmp_path: Path):
    other, model = Model(), Model()
    load_weights(model, saved(tmp_path, other))
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


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


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_weights_alone_will_do(tmp_path: Path, name: str):
    other, model = Model(), Model()
    save = save_file if name.endswith(".safetensors") else torch.save
    save(other.state_dict(), tmp_path / name)
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
