"""A staged copy that changed since an earlier run verified it leaves no trace in predictions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from headrace.errors import ShardError
from headrace.evaluation import predict
from headrace.evaluation.evaluation_plan import NodeTask, ShardTask
from headrace.evaluation.merge import ScoredSamples, read_part
from headrace.evaluation.predictor import Predictor
from headrace.examples.digits_model import DigitsClassifier
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.recipe.recipe import Recipe
from headrace.staging import cache as soundness
from headrace.staging.peers import PeerGroup, groups_of
from headrace.staging.staged import ensure_staged
from headrace.staging.tier_choice import StagingOptions
from support.factories import step_spec
from support.shards import write_dataset
from support.training import make_recipe, make_site

NUM_SAMPLES, SHARD_SAMPLES = 24, 8
DAMAGED = 1
"""The shard that is harmed."""


class Evaluation:
    """What a node does in an evaluation, in this process.

    Args:
        folder: For everything.
        verify: The recipe's `stage.verify`.
    """

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        generator = np.random.default_rng(1)
        image = generator.integers(0, 255, (NUM_SAMPLES, 8, 8)).astype(np.uint8)
        self.source = folder / "dataset"
        self.manifest = write_dataset(
            self.source,
            {"image": image, "label": np.arange(NUM_SAMPLES) % 10},
            splits={"test": NUM_SAMPLES},
            shard_samples=SHARD_SAMPLES,
            classes=tuple(str(number) for number in range(10)),
        )
        self.site = make_site(folder)
        content = {
            "dataset": {"name": "small", "path": str(self.source)},
            "model": {"_target_": "headrace.examples.digits_model.DigitsClassifier"},
            "data": {"transforms": [{"_target_": "headrace.data.transforms.ScaleToUnit"}]},
            "trainer": {"accelerator": "cpu"},
            "stage": {"verify": verify},
            "evaluate": {"batch_size": SHARD_SAMPLES},
        }
        self.run = RunFolder(folder / "run")
        self.run.path.mkdir()
        write_record(self.run.recipe, make_recipe(content))
        write_record(self.run.site, self.site)
        torch.manual_seed(3)
        self.checkpoint = folder / "final.ckpt"
        torch.save({"state_dict": DigitsClassifier().state_dict()}, self.checkpoint)
        self.step = StepFolder(folder / "step")
        self.step.parts.mkdir(parents=True)
        inputs = {"dataset": str(self.source), "checkpoint": str(self.checkpoint)}
        spec = step_spec(self.run, "evaluate", inputs=inputs)
        write_record(self.step.spec, spec)

    @property
    def file(self) -> str:
        """Name of the shard that is harmed."""
        return self.manifest.shards[DAMAGED].file

    def staged(self) -> Path:
        """The shard on the node, which stages it as an earlier run has."""
        options = StagingOptions(s3=self.site.s3)
        return ensure_staged(self.source, self.site.tiers, options=options).folder / self.file

    def score(self, number: int = DAMAGED, group: PeerGroup | None = None) -> ScoredSamples:
        """Predictions of a shard."""
        task = ShardTask(
            file=self.manifest.shards[number].file,
            first=number * SHARD_SAMPLES,
            num_samples=SHARD_SAMPLES,
        )
        job = NodeTask(step_folder=str(self.step.path), env={}, groups={}, group=group)
        num_samples, self.why_again = predict.score(job, task)
        assert num_samples == SHARD_SAMPLES
        return read_part(self.step.parts / task.part_name)


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Copies count as large, and this process is left as it was."""
    monkeypatch.setattr(soundness, "SMALL_BYTES", 0)
    num_threads, is_strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    predict.forget()
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(is_strict)


@pytest.fixture
def evaluation(tmp_path: Path) -> Evaluation:
    return Evaluation(tmp_path)


def unseen(harm: Callable[[Path], None], shard: Path) -> None:
    """Do harm that nothing shows but the bytes, as when a disk fails."""
    status = shard.stat()
    harm(shard)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip(shard: Path) -> None:
    with h5py.File(shard, "r+") as file:
        file["fields/image"][...] ^= 255


def break_header(shard: Path) -> None:
    with shard.open("r+b") as file:
        file.write(bytes(512))


def same(one: ScoredSamples, other: ScoredSamples) -> bool:
    pairs = [(one.columns[name], other.columns[name]) for name in ("preds", "label")]
    return all(np.array_equal(*pair) for pair in pairs)


@pytest.mark.parametrize("harm", [flip, break_header])
def test_a_shard_that_changed_between_runs_is_staged_anew(evaluation, harm):
    expected = evaluation.score()
    predict.forget()
    assert evaluation.why_again == ""
    unseen(harm, evaluation.staged())
    assert same(evaluation.score(), expected)
    assert f"{evaluation.file} on" in evaluation.why_again
    assert evaluation.staged().read_bytes() == (evaluation.source / evaluation.file).read_bytes()


def test_what_others_mended_is_not_read_from_the_file_of_before(evaluation):
    """The predictor has the damaged file mapped, and goes on to see it when it was replaced."""
    expected = evaluation.score()
    shard = evaluation.staged()
    unseen(flip, shard)
    shard.unlink()
    shard.write_bytes((evaluation.source / evaluation.file).read_bytes())
    assert same(evaluation.score(), expected)


def test_what_changes_while_it_is_read_is_evaluated_again(evaluation, monkeypatch):
    expected = evaluation.score()
    predicts, harmed = Predictor.predict, []

    def predict_meanwhile(self: Predictor, first: int, num_samples: int) -> ScoredSamples:
        if not harmed:
            harmed.append(first)
            flip(evaluation.staged())
        return predicts(self, first, num_samples)

    monkeypatch.setattr(Predictor, "predict", predict_meanwhile)
    assert same(evaluation.score(), expected)
    assert harmed


def test_a_node_of_a_gang_fetches_it_from_elsewhere(evaluation, tmp_path):
    group, _ = groups_of(tmp_path, ["127.0.0.1", "127.0.0.2"], "auto")
    expected = evaluation.score()
    predict.forget()
    unseen(flip, evaluation.staged())
    assert same(evaluation.score(group=group), expected)


def test_damage_that_the_source_has_too_is_named(evaluation):
    shard = evaluation.staged()
    for path in (shard, evaluation.source / evaluation.file):
        unseen(flip, path)
    with pytest.raises(ShardError, match=Path(evaluation.file).name):
        evaluation.score()


def test_a_copy_that_never_stays_right_is_named(evaluation, monkeypatch):
    predicts = Predictor.predict

    def predict_meanwhile(self: Predictor, first: int, num_samples: int) -> ScoredSamples:
        flip(evaluation.staged())
        return predicts(self, first, num_samples)

    monkeypatch.setattr(Predictor, "predict", predict_meanwhile)
    with pytest.raises(ShardError, match=r"test-00001\.h5.* again and again"):
        evaluation.score()


def test_nothing_is_looked_at_without_verification(tmp_path):
    evaluation = Evaluation(tmp_path, verify=False)
    expected = evaluation.score()
    predict.forget()
    unseen(flip, evaluation.staged())
    assert not same(evaluation.score(), expected)


def test_each_shard_is_looked_at_once(evaluation, monkeypatch):
    evaluation.staged()
    looked_at: list[str] = []
    compared = soundness.file_xxh3_128

    def look(path: Path, tick: Any) -> str:
        looked_at.append(path.name)
        return compared(path, tick)

    monkeypatch.setattr(soundness, "file_xxh3_128", look)
    for number in range(len(evaluation.manifest.shards)):
        evaluation.score(number)
    assert looked_at == [Path(shard.file).name for shard in evaluation.manifest.shards]


def test_another_decoder_than_in_training_is_reported_once(tmp_path: Path) -> None:
    evaluation = Evaluation(tmp_path)
    content = json.loads(evaluation.run.recipe.read_text())
    write_record(
        evaluation.run.recipe,
        Recipe.model_validate({**content, "data": {**content["data"], "decode": "gpu"}}),
    )
    weights = torch.load(evaluation.checkpoint)
    state = {"decoder": "nvimgcodec 0.9.0 on cuda"}
    torch.save({**weights, "HeadraceDataModule": state}, evaluation.checkpoint)
    evaluation.score(0)
    evaluation.score(1)
    lines = evaluation.step.events.read_text().splitlines()
    (event,) = [each for each in map(json.loads, lines) if each["event"] == "notes"]
    assert event["decoder"] == "the CPU: no GPU is in use"
    assert event["decoder_changed"].startswith("from nvimgcodec 0.9.0 on cuda to the CPU")
