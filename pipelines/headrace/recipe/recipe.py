"""The recipe: what is done with which data, without machines and places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from headrace.errors import RecipeError
from headrace.recipe.base import (
    Arguments,
    Count,
    CountFrom0,
    Name,
    Places,
    Problems,
    Seed,
    Settings,
    Target,
    Targets,
)
from headrace.recipe.dataset import VALIDATION, DatasetSpec, PackSpec
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.suite import Objective, SuiteSpec
from headrace.recipe.train import TrainerSpec, TrainSpec


class StageSpec(Settings):
    """How shards get to the nodes' own storage."""

    verify: bool = True
    """Compare the checksum of every shard while it is copied, and again while it is used."""
    splits: Annotated[tuple[Name, ...], Field(max_length=1000)] | None = None
    """Splits to stage; null stages all."""
    partial: bool = False
    """When no tier has room for all: stage what fits, read the rest from where the dataset lies."""
    peers: Literal["auto", "never"] = "auto"
    """`auto`: each shard is read once for all nodes of a gang, which pass it on; or `never`."""
    overlap: bool = False
    """Training starts when the first shards are in; the rest comes while it runs."""

    def problems(self) -> Problems:
        """Yield keys that exclude each other."""
        if self.overlap and self.partial:
            yield "overlap stages the whole dataset: set partial to false"


class RetryPolicy(Settings):
    """How often work that failed is tried again; a training goes on from its last checkpoint."""

    max_failures: Count = 5
    """Failures of a step in a row, without progress between them, before a run gives it up."""


CROP = "headrace.data.transforms.RandomResizedCrop"
"""A sample transform that threads do while they decode."""


class DataSpec(Settings):
    """How samples become batches."""

    global_batch_size: Count = 128
    """Samples an optimizer step, over all ranks and accumulated batches."""
    shuffle: bool = True
    """Shuffle the training split anew each epoch, by seed."""
    shuffle_window: Count | None = None
    """Shards that are shuffled together, for shared storage and S3; null: the whole split."""
    sampling: Name = "uniform"
    """`uniform`: each sample once an epoch; `balanced`: classes alike; or a field of weights."""
    samples_per_epoch: Count | None = None
    """Samples drawn an epoch when sampling is not uniform; null: as many as the split has."""
    fold: CountFrom0 | None = None
    """Fold of `dataset.folds` to validate on, from 0; the others are trained on. Null: all are."""
    drop_last: bool = True
    """Leave out the last training batch when it is not full."""
    prefetch: Annotated[int, Field(ge=0, le=256)] = 4
    """Batches that each rank reads ahead, by half as many threads; 0: read when asked for."""
    workers: Annotated[int, Field(ge=0, le=256)] | Literal["auto"] = "auto"
    """Processes of each rank for `sample_transforms`, `collate` and `dataset`, two batches ahead
    each; `auto`: as many as its cores, at most 16, if training waits for threads; 0: threads."""
    pad: float | None = None
    """Ragged arrays are filled up with this to the longest of the batch; null gives lists."""
    read_ahead: Count | None = None
    """Shards fetched ahead when they are not on the node; null: one window, at least 2."""
    verify_samples: bool = False
    """Compare the checksum of each sample that is read; reading is about ten times slower."""
    on_bad_shard: Literal["stop", "skip"] = "stop"
    """`skip`: check all shards at the start of a run, train without the damaged ones."""
    decode: Literal["cpu", "gpu"] = "cpu"
    """`gpu`: JPEG is decoded by nvJPEG where a rank has a GPU; its pixels may differ slightly."""
    dataset: Target | None = None
    """A map-style `Dataset` of yours: gets the samples of a split, gives others, of any number."""
    sample_transforms: Targets = ()
    """Callables `sample -> sample` before batches are formed; `generator` is None in evaluation."""
    batch: Name | Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)] | None = None
    """What the model gets: a list of fields gives a tuple, one name its tensor, null a dict of all
    fields. After `transforms` and `augment`."""
    collate: Target | None = None
    """Callable `[sample, …] -> batch` that forms batches in headrace's place, as from pairs; what
    is not a dict is what the model gets."""
    transforms: Targets = ()
    """Callables `batch -> batch`, applied in order in training and evaluation."""
    augment: Targets = ()
    """Callables `batch -> batch`, applied after `transforms` in training only."""

    def problems(self) -> Problems:
        """Yield keys that exclude each other."""
        weighted = self.sampling != "uniform"
        if weighted and (self.shuffle_window is not None or not self.shuffle):
            yield (f"sampling '{self.sampling}' draws from the whole split: it goes with shuffle: "
                   "true and without shuffle_window")  # fmt: skip
        if self.samples_per_epoch is not None and not weighted:
            yield "samples_per_epoch goes with sampling balanced or by weights"
        if self.shuffle_window is not None and not self.shuffle:
            yield "shuffle_window goes with shuffle: true"
        if self.dataset is not None and (weighted or self.shuffle_window is not None):
            yield ("dataset of your own goes with sampling: uniform and without shuffle_window: "
                   "its items are not those that shards hold")  # fmt: skip
        if self.collate is not None and self.batch is not None:
            yield "batch names fields, and collate forms the batch: leave one out"
        per_sample = self.sample_transforms or self.collate or self.dataset
        if self.decode == "gpu" and per_sample:
            yield ("decode: gpu decodes whole batches: leave out sample_transforms, collate and "
                   "dataset, which take samples")  # fmt: skip
        crops_only = all(each.target == CROP for each in self.sample_transforms)
        has_python = not crops_only or self.collate or self.dataset
        if self.workers not in ("auto", 0) and not has_python:
            yield (f"workers: {self.workers} goes with sample_transforms, collate or dataset: "
                   "threads do all else faster; write auto or 0")  # fmt: skip
        if self.read_ahead is not None and self.read_ahead < (self.shuffle_window or 1):
            yield "read_ahead must be at least shuffle_window: batches span two windows"


_ACCURACY = (Objective(metric="accuracy", mode="max"),)
_MAIN_METRICS = {
    "multiclass": _ACCURACY,
    "binary": _ACCURACY,
    "multilabel": _ACCURACY,
    "regression": (Objective(metric="mae"),),
}


class Recipe(Settings):
    """One recipe: dataset, pack, stage, model, data, trainer, train, retry, evaluate, suite."""

    name: Name
    """Name of the recipe."""
    vars: Arguments = {}
    """Values of your own, to be named elsewhere in the recipe as `${vars.width}`."""
    seed: Seed = 0
    """Seed of weights, sample order and augmentation."""
    code: Places = ()
    """Folders put at the end of the module path for `_target_`; the site must allow them."""
    pack_role: Name = "cpu"
    """The site's role that packs; where the dataset is packed already, `train.role` looks at it."""
    dataset: DatasetSpec | None = None
    """Raw samples; null if `datamodule`, the model's own loaders, `train.script` or
    `train.function` bring their own: then nothing is packed or staged."""
    datamodule: Target | None = None
    """A LightningDataModule instead of `dataset`: its loaders, samplers and transforms are used."""
    pack: PackSpec = PackSpec()
    """Raw samples to shards."""
    stage: StageSpec = StageSpec()
    """Shards to the nodes."""
    data: DataSpec = DataSpec()
    """Shards to batches."""
    model: Target | None = None
    """A LightningModule; its `predict_step(batch, index)` gives scores `(batch, classes)`."""
    trainer: TrainerSpec = TrainerSpec()
    """Lightning's Trainer."""
    train: TrainSpec = TrainSpec()
    """Launch of training."""
    retry: RetryPolicy = RetryPolicy()
    """How often a step that failed is tried again."""
    evaluate: EvaluateSpec | None = EvaluateSpec()
    """Evaluation; null leaves it out."""
    suite: SuiteSpec | None = None
    """Trials of the recipe, which `headrace sweep` runs; null: none are named here."""

    @property
    def reads_shards(self) -> bool:
        """Whether a model is trained on a packed dataset, by headrace's loaders."""
        return self.model is not None and self.dataset is not None

    @property
    def named_dataset(self) -> DatasetSpec:
        """The dataset; raise RecipeError if the recipe has none."""
        if self.dataset is None:
            raise RecipeError(
                f"Recipe '{self.name}' has no 'dataset': its own code brings the data",
                "Name one, as in dataset: {name: mine, source: /data/mine}.",
            )
        return self.dataset

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Objectives by which trials are compared: `sought`, else a run's main metric.

        The main metric is the first of the task, or the loss without evaluation. Empty for a
        script or function that is not evaluated.
        """
        if self.sought:
            return self.sought
        if self.evaluate is not None:
            return _MAIN_METRICS.get(self.evaluate.task, ())
        return () if self.model is None else (Objective(metric="loss"),)

    @property
    def sought(self) -> tuple[Objective, ...]:
        """Objectives that the recipe names: those of the suite, else the monitored metric."""
        if self.suite is not None and self.suite.objectives:
            return self.suite.objectives
        if self.trainer.monitor is None:
            return ()
        return (Objective(metric=self.trainer.monitor, mode=self.trainer.monitor_mode),)

    @model_validator(mode="before")
    @classmethod
    def _evaluate_samples_only(cls, content: object) -> object:
        """Leave evaluation out by default without a model, or without samples of headrace's."""
        if not isinstance(content, Mapping) or "evaluate" in content:
            return content
        is_judged = content.get("dataset") and content.get("model") is not None
        return content if is_judged else {**content, "evaluate": None}

    @property
    def dataset_path(self) -> str | None:
        """Folder or URL of an already packed dataset; None if the recipe names none."""
        return None if self.dataset is None else self.dataset.path

    @property
    def packing_role(self) -> str:
        """The role that packs; for a packed dataset the role that trains, which checks it."""
        return self.pack_role if self.dataset_path is None else self.train.role

    @property
    def _runs_all_folds(self) -> bool:
        return self.suite is not None and self.suite.folds

    def problems(self) -> Problems:
        """Yield keys of one section that contradict those of another."""
        train = self.train
        trains = (self.model, train.script, train.module, train.command or None, train.function)
        if sum(each is not None for each in trains) != 1:
            yield ("give one of 'model', 'train.script', 'train.module', 'train.command' and "
                   "'train.function'")  # fmt: skip
        if not train.is_script and (train.args or train.folder is not None):
            key = "train.args" if train.args else "train.folder"
            yield f"{key} goes with 'train.script', 'train.module' or 'train.command'"
        if self.datamodule is not None and (self.dataset is not None or self.model is None):
            yield "'datamodule' goes with 'model' and without 'dataset'"
        yield from self._lacking_dataset() if self.dataset is None else ()
        yield from self._lacking_model() if self.model is None else ()
        yield from self._staging()
        yield from self._judging()
        if self.dataset is not None and self.dataset.source is not None:
            yield from self._splitting(self.dataset)

    def _lacking_dataset(self) -> Problems:
        """Yield keys that need samples."""
        if self.model is not None and self.evaluate is not None:
            yield ("evaluate scores samples of a 'dataset': set evaluate: null; what the model "
                   "logs in validation is recorded")  # fmt: skip
        if self.model is not None and self.data != DataSpec():
            yield ("'data' says how samples of a 'dataset' become batches: leave it out, or write "
                   "a dataset")  # fmt: skip
        if self.model is not None and self.trainer.scale_lr is not None:
            yield "trainer.scale_lr goes with data.global_batch_size of a 'dataset'"
        if self.data.fold is not None or self._runs_all_folds:
            key = "suite.folds" if self._runs_all_folds else "data.fold"
            yield (f"{key} is given, but the recipe has no dataset to cut into folds: leave it "
                   "out, or write a dataset with folds")  # fmt: skip

    def _lacking_model(self) -> Problems:
        """Yield keys that need a 'model'."""
        train, own = self.train, "script" if self.train.function is None else "function"
        if train.init_from is not None:
            yield f"train.init_from goes with 'model': a {own} loads weights by itself"
        if self.trainer.checkpoint_target is not None:
            yield f"trainer.checkpoint_target goes with 'model', not with a {own}"
        if self.evaluate is not None:
            yield f"a training {own} has no model to evaluate: set 'evaluate: null'"
        if self.dataset is None and any("{dataset}" in x for x in (*train.command, *train.words)):
            yield "train.args name {dataset}, but the recipe has no dataset"
        if self.data.on_bad_shard == "skip":
            yield f"data.on_bad_shard: skip goes with 'model': a {own} reads by itself"
        if train.function and (train.ranks_per_node or 1) != 1:
            yield "train.function is called once: leave train.ranks_per_node out"

    def _staging(self) -> Problems:
        """Yield keys that need all shards on the node when training starts."""
        stage, data = self.stage, self.data
        if stage.overlap and self.model is None:
            yield "stage.overlap goes with 'model': your own code expects all shards"
        if stage.overlap and data.sampling != "uniform":
            yield (f"stage.overlap goes with data.sampling uniform: '{data.sampling}' draws "
                   "from the whole split at once")  # fmt: skip
        if data.dataset is not None and (stage.overlap or stage.partial):
            yield ("data.dataset may read any sample at any time: set stage.overlap and "
                   "stage.partial to false")  # fmt: skip
        if data.workers not in ("auto", 0) and (stage.overlap or stage.partial):
            yield ("data.workers need all shards on the node: write auto or 0, or set "
                   "stage.overlap and stage.partial to false")  # fmt: skip

    def _judging(self) -> Problems:
        """Yield keys by which nothing can be compared, or that name no checkpoint."""
        evaluate, suite = self.evaluate, self.suite
        if evaluate and "best" in evaluate.checkpoints and not self.trainer.monitor:
            yield "evaluate.checkpoint is 'best', by no metric: set trainer.monitor, as in val_loss"
        last = max(evaluate.steps, default=0) if evaluate else 0
        if 0 <= self.trainer.max_steps < last:
            yield (f"evaluate.checkpoint is {last}, but training ends after trainer.max_steps: "
                   f"{self.trainer.max_steps}")  # fmt: skip
        if suite and suite.search and not self.sought:
            yield ("suite.search seeks nothing: set trainer.monitor, as in val_loss, or "
                   "suite.objectives")  # fmt: skip
        if self._runs_all_folds and self.dataset is not None and self.dataset.folds is None:
            yield "suite.folds goes with dataset.folds, the number of folds to pack"

    def _splitting(self, dataset: DatasetSpec) -> Problems:
        """Yield folds and splits that the dataset is packed without."""
        fold, folds, splits = self.data.fold, dataset.folds, dataset.splits
        if fold is not None and folds is None:
            yield (f"data.fold is {fold}, but the dataset is packed without folds: set "
                   "dataset.folds, or data.fold to null")  # fmt: skip
        if fold is not None and folds is not None and fold >= folds:
            yield (f"data.fold is {fold}, but dataset.folds is {folds}: give one from 0 to "
                   f"{folds - 1}")  # fmt: skip
        own = (self.evaluate.split, *self.evaluate.also_splits) if self.evaluate else ()
        for split in (each for each in own if each not in splits):
            if folds is None or split != VALIDATION:
                yield (f"evaluate.split is '{split}', but dataset.splits has "
                       f"{', '.join(splits)}: name one of these")  # fmt: skip
            elif fold is None and not self._runs_all_folds:
                yield ("evaluate.split is 'val', which is one of the folds: set data.fold, from 0 "
                       f"to {folds - 1}")  # fmt: skip
