"""Checkpoint files: the newest whole one, pruning, publishing."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from headrace.checkpoints import files as checkpoints
from headrace.checkpoints.weights import weights_hash
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import checkpoint_name
from headrace.training.launch_records import TrainingOutcome


def save(folder: Path, step: int) -> Path:
    path = folder / checkpoint_name(step)
    torch.save({"state_dict": {"w": torch.arange(1000) + step}}, path)
    return path


def test_names_and_steps():
    assert checkpoint_name(123) == "step-000000123.ckpt"
    assert checkpoints.step_of(Path("a/step-000000123.ckpt")) == 123
    assert checkpoints.step_of(Path("final.ckpt")) is None
    assert checkpoints.step_of(Path(".step-000000123.ckpt.x.partial")) is None


def test_the_newest_by_step_not_by_time(tmp_path):
    save(tmp_path, 30)
    save(tmp_path, 9)
    assert checkpoints.newest_whole(tmp_path) == tmp_path / "step-000000030.ckpt"
    assert checkpoints.newest_whole(tmp_path / "nowhere") is None


@pytest.mark.parametrize("harm", ["truncate", "flip", "empty", "text"])
def test_damaged_checkpoints_are_passed_over(tmp_path, harm):
    good, bad = save(tmp_path, 1), save(tmp_path, 2)
    content = bytearray(bad.read_bytes())
    if harm == "flip":
        place = bytes(content).index((torch.arange(1000) + 2).numpy().tobytes()[:80])
        content[place + 500] ^= 1
    harmed = {"truncate": content[:-100], "flip": content, "empty": b"", "text": b"hello"}
    bad.write_bytes(harmed[harm])
    assert checkpoints.damage(good) is None
    assert checkpoints.damage(bad)
    assert checkpoints.newest_whole(tmp_path) == good


@pytest.mark.parametrize("harm", ["torn", "empty"])
def test_a_script_goes_on_from_the_newest_file_that_is_whole(tmp_path, harm):
    assert checkpoints.newest_of_script(tmp_path) is None
    for at, name in enumerate(("b.pt", "a.txt", "c.pt", ".d.pt.1.partial", checkpoints.OUTCOME)):
        torch.save({"w": torch.arange(1000)}, tmp_path / name)
        os.utime(tmp_path / name, (at, at))
    (tmp_path / "a.txt").write_text("of no known format")
    os.utime(tmp_path / "a.txt", (1, 1))
    content = (tmp_path / "c.pt").read_bytes() if harm == "torn" else b""
    assert checkpoints.newest_of_script(tmp_path) == tmp_path / "c.pt"
    (tmp_path / "c.pt").write_bytes(content[:-100])
    assert checkpoints.newest_of_script(tmp_path) == tmp_path / "b.pt"
    (tmp_path / "b.pt").unlink()
    assert checkpoints.newest_of_script(tmp_path) == tmp_path / "a.txt"


WEIGHTS = [
    "model.pt", "model.pth", "epoch=3.ckpt", "pytorch_model.bin", "model.safetensors", "model.h5",
    "model.keras", "model.joblib", "model.pkl", "weights.npz", "model.onnx", "ckpt-3.index",
    "hf/model-00001-of-00002.safetensors", "checkpoint-20/model.safetensors", "a/saved_model.pb",
    "orbax/3/default/ocdbt.process_0/manifest.ocdbt", "orbax_old/params.w/.zarray",
    "dcp/__0_0.distcp", "global_step3/mp_rank_00_model_states.pt", "model.weights.h5",
]  # fmt: skip
UNKNOWN = ["state.txt", "state.json", "model.json", "model", "model.cbm", "folder/model.cbm"]
RECORDS = [
    "all_results.json", "train_results.json", "eval_results.json", "trainer_state.json",
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "vocab.json", "vocab.txt", "merges.txt", "metrics.csv", "train.log",
    "model.safetensors.index.json", "training_args.bin", "README.md", "config.yaml", "loss.png",
    "events.out.tfevents.1.host.1.0", "runs/Nov28/events.out.tfevents.1.host.1.0",
    "logs/metrics.csv", "empty/", "checkpoint-9/rng_state_0.pth", "checkpoint-9/trainer_state.json",
]  # fmt: skip


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("others", [RECORDS, RECORDS + UNKNOWN], ids=["records", "unknown"])
def test_the_checkpoint_of_a_script_is_what_holds_weights(tmp_path, weights, others):
    """Also if all else is newer."""
    for at, name in enumerate((weights, *others)):
        path = tmp_path / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text("x")
        top = tmp_path / Path(name).parts[0]
        os.utime(top, (at, at))
    (tmp_path / "latest").symlink_to("gone.pt")
    assert checkpoints.of_script(tmp_path)[0] == tmp_path / Path(weights).parts[0]
    assert checkpoints.newest_of_script(tmp_path) == tmp_path / Path(weights).parts[0]


@pytest.mark.parametrize("name", RECORDS + UNKNOWN)
def test_records_are_no_checkpoint_and_no_progress(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if name.endswith("/") else path.write_text("x")
    is_found = name in UNKNOWN
    assert bool(checkpoints.of_script(tmp_path)) == is_found
    assert bool(checkpoints.progress_in(tmp_path)) == is_found


def test_bits_that_flip_anywhere_are_damage_or_harmless(tmp_path):
    """Also those that tell how the file is to be read."""
    path = save(tmp_path, 1)
    content = path.read_bytes()
    others = content.index((torch.arange(1000) + 1).numpy().tobytes()[:80]), 8000
    places = [n for n in range(0, len(content), 7) if not others[0] <= n < sum(others)]
    told = 0
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x81]) + content[place + 1 :])
        told += checkpoints.damage(path) is not None
    assert 0 < told < len(places)


def test_prune_keeps_the_newest_and_all_else(tmp_path):
    for step in (3, 6, 9, 12):
        save(tmp_path, step)
    (tmp_path / "final.ckpt").touch()
    checkpoints.prune(tmp_path, 2)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["final.ckpt", "step-000000009.ckpt", "step-000000012.ckpt"]


def test_publish_replaces_files_and_folders(tmp_path):
    prepared = tmp_path / ".a.partial"
    prepared.write_text("new")
    checkpoints.publish(prepared, tmp_path / "a")
    assert (tmp_path / "a").read_text() == "new"
    for content in ("first", "second"):
        prepared.mkdir()
        (prepared / "shard").write_text(content)
        checkpoints.publish(prepared, tmp_path / "folder")
    assert (tmp_path / "folder" / "shard").read_text() == "second"
    assert not prepared.exists()


def test_a_folder_that_is_half_removed_has_lost_its_name(tmp_path, monkeypatch):
    """The next launch would take it for whole, were its list of checksums the first to go."""
    (tmp_path / checkpoint_name(1)).mkdir()
    monkeypatch.setattr(checkpoints.shutil, "rmtree", lambda *_, **__: None)
    checkpoints.remove(tmp_path / checkpoint_name(1))
    assert checkpoints.newest_whole(tmp_path) is None
    monkeypatch.undo()
    checkpoints.remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_writers_left_is_removed(tmp_path):
    (tmp_path / ".step-000000003.ckpt.x.partial").touch()
    kept = save(tmp_path, 3)
    checkpoints.remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]


def test_an_outcome_with_a_metric_that_is_not_finite_can_be_read(tmp_path):
    """A metric without a value, as the AUROC of one class, is NaN; its training is complete."""
    outcome = TrainingOutcome(
        fingerprint="f", checkpoint="", epochs=1, steps=2, world_size=1,
        metrics={"val/auroc": math.nan, "loss": 0.5},
    )  # fmt: skip
    write_record(tmp_path / checkpoints.OUTCOME, outcome)
    found = read_record(tmp_path / checkpoints.OUTCOME, TrainingOutcome)
    assert math.isnan(found.metrics["val/auroc"])
    assert found.metrics["loss"] == 0.5


def test_equal_weights_have_equal_hashes_and_others_have_not():
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(1, dtype=torch.bfloat16)}
    first = weights_hash(weights)
    assert first == weights_hash(dict(reversed(weights.items())))
    assert first == weights_hash({**weights, "a": weights["a"].t().contiguous().t()})
    changed = [
        {**weights, "a": weights["a"].reshape(3, 2)},
        {**weights, "a": weights["a"].double()},
        {**weights, "a": weights["a"] + torch.tensor(1e-6)},
        {"c": weights["a"], "b": weights["b"]},
    ]
    assert len({first, *map(weights_hash, changed)}) == 5
