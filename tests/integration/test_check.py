"""`headrace check` names what training would fail on, by one real batch and without a lease."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

import headrace as from_python
from headrace.examples.digits import export_digits
from support.command_line import Ended, headrace
from support.waiting import wait_until

MODULE = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from lightning.pytorch import LightningDataModule, LightningModule


class Good(LightningModule):
    channels, num_classes = 1, 10

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(self.channels, 4, 3)
        self.head = nn.Linear(4 * 36, self.num_classes)

    def forward(self, image):
        return self.head(self.conv(image.unsqueeze(1)).flatten(1))

    def training_step(self, batch, index):
        return cross_entropy(self(batch["image"]), batch["label"])

    def validation_step(self, batch, index):
        self.log("val_loss", self.training_step(batch, index))

    def predict_step(self, batch, index):
        return self(batch["image"]).softmax(1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class ThreeChannels(Good):
    channels = 3


class NineClasses(Good):
    num_classes = 9


class Infinite(Good):
    def training_step(self, batch, index):
        return super().training_step(batch, index) * float("nan")


class FailsToValidate(Good):
    def validation_step(self, batch, index):
        self.log("val_loss", self(batch["picture"]))


class FailsToPredict(Good):
    def predict_step(self, batch, index):
        return self(batch["image"], scale=2)


class NineScores(Good):
    def predict_step(self, batch, index):
        return self(batch["image"])[:, :9]


class Unused(Good):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


class WithObject(Good):
    def __init__(self, kind=complex):
        super().__init__()
        self.save_hyperparameters()


class Dies(Good):
    def training_step(self, batch, index):
        import os, signal
        os.kill(os.getpid(), signal.SIGSEGV)


class Endless(Good):
    def training_step(self, batch, index):
        import time
        open(self.file, "w").close()
        time.sleep(600)

    def __init__(self, file):
        super().__init__()
        self.file = file


class Module(LightningDataModule):
    def __init__(self, num_classes=10):
        super().__init__()
        labels = torch.arange(40) % num_classes
        self.items = [{"image": torch.rand(8, 8), "label": label} for label in labels]

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.items, batch_size=20)

    val_dataloader = train_dataloader


def collate(samples):
    return torch.stack([each["picture"] for each in samples])


def fit():
    import not_installed_anywhere
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check")
    export_digits(folder / "home" / "examples" / "digits")
    (folder / "broken.py").write_text(MODULE)
    (folder / "train.py").write_text("raise SystemExit('a script is not run')\n")
    return folder


@pytest.fixture
def check(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    monkeypatch.setenv("HEADRACE_HOME", str(home / "home"))
    monkeypatch.chdir(home)

    def run(*words: str, **changes: Any) -> Ended:
        (home / "mine.yaml").write_text(yaml.safe_dump(recipe_of(home, **changes)))
        return headrace("check", "mine.yaml", *words)

    return run


def recipe_of(home: Path, **changes: Any) -> dict[str, Any]:
    """A recipe of the digits that is good but for the changes; None takes a key out."""
    content = {
        "name": "mine",
        "dataset": {
            "name": "digits", "source": str(home / "home/examples/digits"), "labels": "folders",
        },
        "pack": {"images": "decode"},
        "data": {
            "transforms": [{"_target_": "headrace.data.transforms.ScaleToUnit", "maximum": 255}],
        },
        "model": {"_target_": "broken.Good"},
        "trainer": {"accelerator": "cpu", "monitor": "val_loss"},
    }  # fmt: skip
    return {key: value for key, value in {**content, **changes}.items() if value is not None}


def model(name: str, **more: Any) -> dict[str, Any]:
    return {"model": {"_target_": f"broken.{name}"}, **more}


TRANSFORM = {"_target_": "headrace.data.transforms.ScaleToUnit", "maximum": 255}
SCRIPT = {"model": None, "dataset": None, "data": None, "pack": None, "trainer": None}


def files_below(folder: Path) -> set[tuple[str, int]]:
    names = (each for each in folder.rglob("*") if "__pycache__" not in each.parts)
    return {(str(each), each.stat().st_mtime_ns) for each in names if each.name != "mine.yaml"}


def test_a_good_recipe_is_measured_and_leaves_nothing(
    home: Path, check: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = files_below(home)
    done = check()
    assert done.exit_code == 0, done.output
    for words in (
        "samples     1,797", "image float32 (32, 8, 8), label int64 (32,)", "parameters  1,490",
        "loss        2.", "logged      val_loss", "s: nothing found that training would fail on",
    ):  # fmt: skip
        assert words in done.stdout
    assert files_below(home) == before
    left = {each.name for each in tmp_path.iterdir()}
    assert left <= {f"torchinductor_{os.environ.get('USER', 'root')}"}  # PyTorch's, at its import


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (model("ThreeChannels"), "training: training_step raised RuntimeError: Given groups=1"),
        (
            model("NineClasses"),
            "Target 9 is out of bounds.\n  Class indices begin at 0: the dataset has 10 classes, "
            "and the last layer 'head' gives 9 scores",
        ),
        (model("Infinite"), "training: The loss became NaN or infinite in step 1"),
        (model("FailsToValidate"), "training: validation_step raised KeyError: 'picture'"),
        (
            {"trainer": {"accelerator": "cpu", "monitor": "val_acc"}},
            "trainer.monitor names 'val_acc', which the model does not log",
        ),
        (model("FailsToPredict"), "evaluation: predict_step raised TypeError: "),
        (model("NineScores"), "evaluation: "),
        (
            {"data": {"collate": {"_target_": "broken.collate", "_partial_": True}}},
            "training: collate raised KeyError: 'picture'",
        ),
        (
            {"data": {"transforms": [{**TRANSFORM, "field": "picture"}]}},
            "training: data.transforms[0] asks for the field 'picture'",
        ),
        (
            {"data": {"transforms": [TRANSFORM], "global_batch_size": 4096}},
            "training: ",
        ),
        ({"dataset": {"name": "d", "source": "/nowhere/there"}}, "recipe: The source"),
        ({"evaluate": {"split": "tets"}}, "recipe: "),
        (model("Dies"), "training: The process of the check ended by signal SIGSEGV"),
        (
            model("Good", dataset=None, datamodule={"_target_": "broken.Module", "num_classes": 12},
                  data=None, pack=None),
            "Target 10 is out of bounds.\n  Class indices begin at 0: the last layer 'head'",
        ),
        ({**SCRIPT, "train": {"script": "missing.py"}}, "missing.py', which does not exist"),
        ({**SCRIPT, "train": {"module": "mising.train"}}, "recipe: train.module is 'mising.train'"),
        (
            {**SCRIPT, "train": {"function": {"_target_": "broken.fitt"}}},
            "recipe: 'broken.fitt' does not exist",
        ),
    ],
)  # fmt: skip
def test_what_training_would_fail_on_is_named(check, changes, words) -> None:
    done = check(**changes)
    assert done.exit_code == 1, done.output
    assert words in done.stdout
    assert "error:" in done.stdout
    assert "checked in" in done.stdout


def test_parameters_without_gradient_are_an_error_only_for_several_ranks(check) -> None:
    alone = check(**model("Unused", train={"ranks_per_node": 1}))
    assert alone.exit_code == 0, alone.output
    assert "note: training: 2 parameters get no gradient from the loss: spare" in alone.stdout
    several = check("train.ranks_per_node=2", **model("Unused"))
    assert several.exit_code == 1
    assert "error: training: 2 parameters get no gradient from the loss" in several.stdout
    trainer = {"accelerator": "cpu", "ddp": {"find_unused_parameters": True}}
    assert check("train.ranks_per_node=2", **model("Unused", trainer=trainer)).exit_code == 0


def test_what_checkpoints_leave_out_is_a_note(check) -> None:
    done = check(**model("WithObject"))
    assert done.exit_code == 0, done.output
    assert "note: training: Checkpoints hold no objects" in done.stdout
    assert "'kind' (type)" in done.stdout


def test_a_data_module_gives_its_own_first_batch(check) -> None:
    own = {"datamodule": {"_target_": "broken.Module"}, "dataset": None, "data": None, "pack": None}
    done = check(**model("Good", **own))
    assert done.exit_code == 0, done.output
    assert "dict of image float32 (20, 8, 8), label int64 (20,)" in done.stdout


def test_a_script_is_found_and_its_words_are_shown_but_it_is_not_run(home: Path, check) -> None:
    args = ["--out", "{run}/x", "--seed", "{seed}"]
    done = check(**SCRIPT, train={"script": "train.py", "args": args}, seed=7)
    assert done.exit_code == 0, done.output
    assert f"{home}/train.py --out" in done.stdout
    assert "--seed 7" in done.stdout


def test_a_function_must_be_importable(check) -> None:
    done = check(**SCRIPT, train={"function": {"_target_": "broken.fit"}})
    assert done.exit_code == 0, done.output


def test_a_packed_dataset_is_read_where_it_lies(home: Path, check) -> None:
    (home / "mine.yaml").write_text(yaml.safe_dump(recipe_of(home)))
    assert headrace("run", "mine.yaml", "--pack-only").exit_code == 0
    (packed,) = (home / "home").rglob("manifest.json")
    before = files_below(home / "home")
    done = check(dataset={"name": "digits", "path": str(packed.parent)})
    assert done.exit_code == 0, done.output
    assert "samples     1,797" in done.stdout
    assert files_below(home / "home") == before


def test_the_record_is_the_same_from_python_and_as_json(home: Path, check) -> None:
    done = check("--json", **model("NineClasses"))
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["stage"], finding["is_error"]) == ("training", True)
    assert "training_step" in finding["trace"]
    report = from_python.check(recipe_of(home, **model("NineClasses")), seed=3)
    assert not report.is_good
    assert report.findings[0].what == finding["what"]


def test_ctrl_c_ends_the_process(home: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    content = recipe_of(home, **{"model": {"_target_": "broken.Endless", "file": str(begun)}})
    (home / "endless.yaml").write_text(yaml.safe_dump(content))
    environment = {**os.environ, "HEADRACE_HOME": str(home / "home"), "TMPDIR": str(tmp_path)}
    command = [Path(sys.executable).with_name("headrace"), "check", "endless.yaml"]
    with subprocess.Popen(command, cwd=home, env=environment, start_new_session=True) as running:
        wait_until(begun.exists, 60, "the training step")
        below = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
    wait_until(lambda: not any(map(psutil.Process.is_running, below)), 30, "the end of the child")
    assert not list(tmp_path.glob("headrace-check-*"))
