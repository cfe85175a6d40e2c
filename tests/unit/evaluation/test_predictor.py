"""The model's side: weights, shapes, errors of user code."""

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torchmetrics.segmentation import MeanIoU

from headrace.checkpoints.content import read_checkpoint
from headrace.data.dataset import OwnDataset, Reading
from headrace.errors import (
    MemoryExhaustedError,
    RecipeError,
    StepError,
    TargetError,
    UserCodeError,
    UserError,
)
from headrace.evaluation.own_results import own_values
from headrace.evaluation.predictor import Predictor, choose_device, load_model
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.shards.dataset import ShardedDataset
from support.shards import write_dataset
from support.training import make_recipe, make_site

CODE = """
import torch
from lightning.pytorch import LightningModule

class Scale(LightningModule):
    def __init__(self, wanted=0.0):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(wanted))

    def predict_step(self, batch, index):
        return torch.stack([batch["array"] * self.factor, -batch["array"]], 1)

def plain():
    return 3
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "predictor_user_code.py").write_text(CODE)
    return folder


@pytest.fixture
def site(tmp_path, code) -> Site:
    return make_site(tmp_path, allowed_code=[str(code)])


def recipe(code: Path, target: str = "predictor_user_code.Scale") -> Recipe:
    return make_recipe({"code": [str(code)], "model": {"_target_": target}})


def predictor(tmp_path: Path, answer, task: str = "multiclass", num_samples: int = 25) -> Predictor:
    class Model(LightningModule):
        def predict_step(self, batch, index):
            return answer(batch)

    fields = {
        "array": np.arange(num_samples, dtype=np.float32),
        "label": np.arange(num_samples) % 2,
    }
    write_dataset(
        tmp_path / "dataset",
        fields,
        splits={"test": num_samples},
        shard_samples=10,
        classes=("even", "odd"),
    )
    return Predictor(
        model=Model(),
        transforms=(lambda batch: batch | {"array": batch["array"] + 1},),
        dataset=ShardedDataset(tmp_path / "dataset", "test"),
        spec=EvaluateSpec(batch_size=4, task=task),
        device=torch.device("cpu"),
    )


def two_scores(batch):
    return torch.stack([batch["array"], -batch["array"]], 1).to(torch.bfloat16)


def test_scores_a_range_in_batches(tmp_path):
    sizes = []

    def answer(batch):
        sizes.append(len(batch["array"]))
        assert torch.is_inference_mode_enabled()
        return two_scores(batch)

    found = predictor(tmp_path, answer).predict(10, 10)
    assert sizes == [4, 4, 2]
    np.testing.assert_array_equal(found.sample_id, np.arange(10, 20))
    np.testing.assert_array_equal(found.predictions.scores[:, 0], np.arange(11, 21))
    assert found.predictions.scores.dtype == np.float32


def test_samples_are_transformed_as_in_training_without_random_numbers(tmp_path):
    def tenfold(sample, generator):
        assert generator is None
        return {**sample, "array": sample["array"] * 10}

    plain = predictor(tmp_path, two_scores)
    found = replace(plain, reading=Reading(transforms=(tenfold,))).predict(0, 5)
    np.testing.assert_array_equal(found.predictions.scores[:, 0], np.arange(5) * 10 + 1)


class Turned(list):
    """Samples of the user's making, last one first."""

    def __init__(self, samples):
        super().__init__(samples[len(samples) - 1 - place] for place in range(len(samples)))


def test_samples_of_ones_own_dataset_are_scored_under_their_ids(tmp_path):
    plain = predictor(tmp_path, two_scores)
    found = replace(plain, reading=Reading(own=OwnDataset("Turned", Turned))).predict(0, 5)
    last = len(plain.dataset) - 1
    np.testing.assert_array_equal(found.sample_id, last - np.arange(5))
    np.testing.assert_array_equal(found.predictions.scores[:, 0], found.sample_id + 1)
    fewer = Reading(own=OwnDataset("Fewer", lambda samples: Turned(samples)[:7]))
    with pytest.raises(UserError, match=r"makes 7 items of the \d+ samples of split 'test'"):
        replace(plain, reading=fewer).predict(0, 5)


def test_regression_takes_one_value_a_sample(tmp_path):
    found = predictor(tmp_path, lambda batch: batch["array"][:, None], "regression").predict(0, 5)
    np.testing.assert_array_equal(found.predictions.scores, np.arange(1, 6))


def test_without_labels_the_model_tells_what_is_right(tmp_path):
    masks = np.random.default_rng(1).integers(0, 3, (12, 4, 4))
    write_dataset(tmp_path / "dataset", {"mask": masks}, splits={"test": 12}, shard_samples=5)

    class Model(LightningModule):
        def predict_step(self, batch, index):
            shifted = batch["mask"].roll(1, -1)
            area = (batch["mask"] > 0).sum((1, 2))
            names = [f"sample {number}" for number in batch["sample_id"].tolist()]
            return {"preds": shifted, "target": batch["mask"], "area": area, "name": names}

    metric = MeanIoU(3, input_format="index")
    spec = EvaluateSpec(task="custom", batch_size=4)
    predictor = Predictor(
        model=Model(),
        transforms=(),
        dataset=ShardedDataset(tmp_path / "dataset", "test"),
        spec=spec,
        device=torch.device("cpu"),
        metrics={"iou": metric},
    )
    parts = [predictor.predict(5, 5), predictor.predict(0, 5), predictor.predict(10, 2)]
    assert metric.update_count == 0, "each shard has a metric of its own"
    assert list(parts[0].columns) == ["area", "name"], "masks are for metrics"
    assert parts[2].columns["name"] == ["sample 10", "sample 11"]
    found = own_values({"iou": metric}, [part.states for part in parts], ()).metrics
    target = torch.from_numpy(masks)
    whole = MeanIoU(3, input_format="index")(target.roll(1, -1), target)
    assert found == pytest.approx({"iou": float(whole)})


@pytest.mark.parametrize(
    ("answer", "task", "words"),
    [
        (lambda batch: batch["array"], "multiclass", r"gave \(4,\), .* \(4, 2\)"),
        (lambda batch: torch.zeros(4, 3), "multiclass", r"gave \(4, 3\), .* \(4, 2\)"),
        (lambda batch: torch.zeros(3, 2), "multiclass", r"gave \(3, 2\)"),
        (lambda batch: {"scores": 1}, "multiclass", "gave dict"),
        (lambda batch: {"preds": 1}, "multiclass", "gave int"),
        (two_scores, "regression", r"gave \(4, 2\), .* \(4,\)"),
        (lambda batch: [1], "custom", "gave list"),
    ],
)
def test_wrong_shapes_are_explained(tmp_path, answer, task, words):
    with pytest.raises(UserCodeError, match=words):
        predictor(tmp_path, answer, task).predict(0, 8)


@pytest.fixture
def no_terminal():
    """As in the processes that run a user's code."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)


def raising(error):
    def answer(batch):
        raise error

    return answer


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ZeroDivisionError("of my own"), UserCodeError, "ZeroDivisionError: of my own"),
        (SystemExit(0), UserCodeError, "predict_step raised SystemExit: 0"),
        (KeyboardInterrupt("x"), UserCodeError, "predict_step raised KeyboardInterrupt: x"),
        (torch.cuda.OutOfMemoryError("9 GiB"), MemoryExhaustedError, r"evaluate\.batch_size"),
    ],
)
def test_what_a_model_raises_is_named_with_its_samples(tmp_path, error, kind, words, no_terminal):
    with pytest.raises(kind, match=words) as told:
        predictor(tmp_path, raising(error)).predict(8, 4)
    if kind is UserCodeError:
        first_frame = told.value.trace.splitlines()[1]
        assert first_frame.endswith("in predict_step")
        assert told.value.where == "samples 8 and following"


def test_weights_come_from_the_checkpoint(tmp_path, code, site):
    content = {"state_dict": {"factor": torch.tensor(7.0)}}
    torch.save({**content, "HeadraceDataModule": {"decoder": "x"}}, tmp_path / "a.ckpt")
    model, transforms, state = load_model(recipe(code), site, tmp_path / "a.ckpt")
    assert state == {"decoder": "x"}
    assert model.factor.item() == 7
    assert not model.training
    assert transforms == ()


@pytest.mark.parametrize("state", [{}, {"factor": torch.zeros(3)}, {"other": torch.zeros(())}])
def test_weights_that_do_not_fit(tmp_path, code, site, state):
    torch.save({"state_dict": state}, tmp_path / "a.ckpt")
    with pytest.raises(UserCodeError, match="does not fit Scale"):
        load_model(recipe(code), site, tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ("os.getcwd", TargetError, r"does not allow the target 'os\.getcwd'"),
        ("predictor_user_code.plain", TargetError, "'model' gave a int, not a LightningModule"),
        (None, RecipeError, "evaluate: null"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, code, site, target, error, words):
    made = recipe(code, target) if target else recipe(code).model_copy(update={"model": None})
    with pytest.raises(error, match=words):
        load_model(made, site, tmp_path / "a.ckpt")


def test_bad_checkpoints_are_told_apart(tmp_path):
    whole = tmp_path / "whole.ckpt"
    torch.save({"state_dict": {}}, whole)
    content = whole.read_bytes()
    torch.save([1], tmp_path / "list.ckpt")
    (tmp_path / "bad.ckpt").write_bytes(b"no checkpoint")
    (tmp_path / "cut.ckpt").write_bytes(content[: len(content) // 2])
    for name, words in (
        ("none", "is missing"), ("bad", "is damaged"), ("cut", "is damaged"),
        ("list", "not a checkpoint of Lightning"),
    ):  # fmt: skip
        with pytest.raises(StepError, match=words):
            read_checkpoint(tmp_path / f"{name}.ckpt")


def test_device():
    assert choose_device("cpu").type == "cpu"
    assert choose_device("gpu").type == "cuda"
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
