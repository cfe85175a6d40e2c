"""Wrong names of a model's parts are told before anything runs, and only where it is sure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import TargetError
from headrace.recipe.load import parse
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.recipe.target_arguments import check_module_classes

MODEL = "from lightning.pytorch import LightningModule\nfrom parts.blocks import Block\n"
BLOCKS = "from torch import nn\nclass Block(nn.Module): ...\n"


def check(folder: Path, names: list[str], key: str = "wrap", **files: str) -> None:
    """Check the names for a model of a module `mine`, which has a package `parts`."""
    found = {"mine": MODEL, "parts.blocks": BLOCKS, "parts.__init__": "", **files}
    for name, text in found.items():
        file = folder / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{text}\nclass Model(LightningModule): ...\n" if name == "mine" else text)
    keys = {"fsdp": {"wrap": names}} if key == "wrap" else {key: names}
    content: dict[str, Any] = {
        "name": "r",
        "code": [str(folder)],
        "dataset": {"name": "d", "path": "p"},
        "model": {"_target_": "mine.Model"},
        "trainer": {"strategy": "fsdp", **keys},
    }
    check_module_classes(parse(Recipe, content, "test"), Role(kind="gang"))


@pytest.mark.parametrize("key", ["wrap", "activation_checkpointing"])
def test_a_class_that_there_is_not_is_told_with_the_nearest(tmp_path, key):
    check(tmp_path, ["Block", "Model", "TransformerEncoderLayer"], key)
    with pytest.raises(TargetError, match=rf"trainer\..*{key} names Blok, which is no") as caught:
        check(tmp_path, ["Blok"], key)
    assert caught.value.hint == "Did you mean 'Block'? Valid: Block, Model."
    with pytest.raises(TargetError, match="Layr") as caught:
        check(tmp_path, ["TransformerEncoderLayr"], key)
    assert "Did you mean 'TransformerEncoderLayer'?" in caught.value.hint


@pytest.mark.parametrize(
    "code",
    [
        "import timm",
        "from transformers import AutoModel",
        "def f():\n    import elsewhere.deep",
        "Other = type('Other', (Block,), {})",
        "import torch\nmodel = torch.hub.load('a', 'b')",
        "def broken(:",
    ],
)
def test_code_that_may_bring_other_classes_is_left_to_the_ranks(tmp_path, code):
    check(tmp_path, ["Blok"], **{"parts.blocks": f"{BLOCKS}{code}\n"})


def test_a_model_of_a_package_that_is_installed_is_left_to_the_ranks():
    content = {
        "name": "r",
        "dataset": {"name": "d", "path": "p"},
        "model": {"_target_": "my_package.Model"},
        "trainer": {"activation_checkpointing": ["Blok"]},
    }
    check_module_classes(parse(Recipe, content, "test"), Role(kind="gang"))
