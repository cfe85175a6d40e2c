"""`headrace check` names what training would fail on, by one real batch and without a lease."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

import headrace as from_python
from headrace.examples.digits import export_digits
from support.command_line import headrace
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


class Found(dict[str, Mapping[str, str]]):
    """Findings by subject."""

    def __init__(self, exit_code: int, findings: list[dict[str, str]]) -> None:
        super().__init__({each["subject"]: each for each in findings})
        failures = [each for each in findings if each["grade"] == "fail"]
        assert exit_code == bool(failures), findings
        self.failures = "\n".join(f"{e['subject']}: {e['seen']} → {e['advice']}" for e in failures)

    def seen(self, subject: str) -> str:
        return self[subject]["seen"]


Check = Callable[..., Found]


@pytest.fixture
def check(home: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Checks the good recipe with changes."""
    monkeypatch.setenv("HEADRACE_HOME", str(home / "home"))
    monkeypatch.chdir(home)

    def run(*words: str, **changes: Any) -> Found:
        (home / "mine.yaml").write_text(yaml.safe_dump(recipe_of(home, **changes)))
        done = headrace("check", "mine.yaml", "--json", *words)
        return Found(done.exit_code, json.loads(done.stdout)["findings"])

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
    home: Path, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = files_below(home)
    found = check()
    assert not found.failures
    assert {name: each["seen"] for name, each in found.items() if name not in ("loss", "time")} == {
        "samples": "1,797", "parameters": "1,490", "logged": "val_loss",
        "batch": "dict of image float32 (32, 8, 8), label int64 (32,), sample_id int64 (32,)",
    }  # fmt: skip
    assert float(found.seen("loss")) == pytest.approx(2.3, abs=0.3)
    assert files_below(home) == before
    left = {each.name for each in tmp_path.iterdir()}
    assert left <= {f"torchinductor_{os.environ.get('USER', 'root')}"}  # PyTorch's, at its import


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (model("ThreeChannels"), "training: training_step raised RuntimeError: Given groups=1"),
        (
            model("NineClasses"),
            "Target 9 is out of bounds. → Give the last layer ('head', Linear(in_features=144, "
            "out_features=9, bias=True)) a score for each class of the 10 of the dataset",
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
        (model("Dies"), "training: the process of the check ended by signal SIGSEGV"),
        (
            model("Good", dataset=None, datamodule={"_target_": "broken.Module", "num_classes": 12},
                  data=None, pack=None),
            "Target 10 is out of bounds. → Give the last layer ('head', Linear(",
        ),
        ({**SCRIPT, "train": {"script": "missing.py"}}, "missing.py', which does not exist"),
        ({**SCRIPT, "train": {"module": "mising.train"}}, "recipe: train.module needs 'mising'"),
        (
            {**SCRIPT, "train": {"function": {"_target_": "broken.fitt"}}},
            "recipe: 'broken.fitt' does not exist",
        ),
    ],
)  # fmt: skip
def test_what_training_would_fail_on_is_named(check: Check, changes, words: str) -> None:
    assert words in check(**changes).failures


def test_parameters_without_gradient_are_an_error_only_for_several_ranks(check: Check) -> None:
    alone = check(**model("Unused", train={"ranks_per_node": 1}))
    words = "2 parameters get no gradient from the loss: spare.weight, spare.bias"
    assert alone["training"]["grade"] == "warn"
    assert alone.seen("training") == words
    assert f"training: {words}" in check("train.ranks_per_node=2", **model("Unused")).failures
    trainer = {"accelerator": "cpu", "ddp": {"find_unused_parameters": True}}
    assert not check("train.ranks_per_node=2", **model("Unused", trainer=trainer)).failures


def test_what_checkpoints_leave_out_is_a_warning(check: Check) -> None:
    found = check(**model("WithObject"))
    assert found["training"]["grade"] == "warn"
    assert "'kind' (type)" in found.seen("training")


def test_a_data_module_gives_its_own_first_batch(check: Check) -> None:
    own = {"datamodule": {"_target_": "broken.Module"}, "dataset": None, "data": None, "pack": None}
    assert check(**model("Good", **own)).seen("batch") == (
        "dict of image float32 (20, 8, 8), label int64 (20,)"
    )


def test_a_script_is_found_and_its_words_are_shown_but_it_is_not_run(
    home: Path, check: Check
) -> None:
    args = ["--out", "{run}/x", "--seed", "{seed}"]
    found = check(**SCRIPT, train={"script": "train.py", "args": args}, seed=7)
    assert f"{home}/train.py --out /" in found.seen("command")
    assert found.seen("command").endswith("/x --seed 7")


def test_a_function_must_be_importable(home: Path, check: Check) -> None:
    (home / "fails.py").write_text("import not_installed_anywhere\ndef fit(): ...\n")
    assert not check(**SCRIPT, train={"function": {"_target_": "broken.fit"}}).failures
    failures = check(**SCRIPT, train={"function": {"_target_": "fails.fit"}}).failures
    assert "No module named 'not_installed_anywhere'" in failures


def test_a_packed_dataset_is_read_where_it_lies(home: Path, check: Check) -> None:
    (home / "mine.yaml").write_text(yaml.safe_dump(recipe_of(home)))
    assert headrace("run", "mine.yaml", "--pack-only").exit_code == 0
    (packed,) = (home / "home").rglob("manifest.json")
    before = files_below(home / "home")
    found = check(dataset={"name": "digits", "path": str(packed.parent)})
    assert (found.failures, found.seen("samples")) == ("", "1,797")
    assert files_below(home / "home") == before


def test_folds_and_a_drawn_order_are_those_of_training(home: Path, check: Check) -> None:
    data = {
        "name": "digits", "source": str(home / "home/examples/digits"), "labels": "folders",
        "folds": 4, "splits": {"train": 0.8, "test": 0.2},
    }  # fmt: skip
    own = {"transforms": [TRANSFORM], "fold": 3, "sampling": "balanced"}
    assert not check(dataset=data, data=own).failures


def test_the_record_is_the_same_from_python_and_the_table_shows_it(
    home: Path, check: Check
) -> None:
    failed = check(**model("NineClasses"))
    found = from_python.check(recipe_of(home, **model("NineClasses")), seed=3)
    assert found.has_failed
    assert found.findings[-2].seen == failed.seen("training")
    assert "training_step" in found.findings[-2].advice
    done = headrace("check", "mine.yaml")
    assert done.exit_code == 1
    assert "fail  mine  training    training_step raised IndexError: Target 9" in done.stdout
    assert "checked in " in done.stdout


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
