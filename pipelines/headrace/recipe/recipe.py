"""The recipe: what is done to which data, never where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from headrace.recipe.base import Name, Seconds, Target
from headrace.recipe.dataset import VALIDATION, DatasetSpec, PackSpec
from headrace.record import Record

_SAME = (
    "max_epochs", "max_steps", "precision", "accelerator", "gradient_clip_val",
    "accumulate_grad_batches", "deterministic",
)  # fmt: skip

OF_LIGHTNING = {
    **{name: f"write trainer.{name}" for name in _SAME},
    "check_val_every_n_epoch": "write trainer.val_every_epochs",
    "devices": "write train.ranks_per_node",
    "num_nodes": "write train.nodes",
    "callbacks": "write trainer.callbacks",
    "logger": "write trainer.loggers",
    "use_distributed_sampler": "leave it out: headrace shares the samples out itself",
}
"""Arguments of Lightning's Trainer that headrace sets, and what to do in their place; those that
are not here are passed on."""


class StageSpec(Record):
    """How shards get to the nodes' own storage."""

    verify: bool = True
    """Compare the checksum of every shard while it is copied, and again while it is used."""
    splits: tuple[Name, ...] | None = None
    """Splits to stage; null stages all."""
    partial: bool = False
    """When no tier has room for all: stage what fits, read the rest from where the dataset lies."""
    peers: Literal["auto", "never"] = "auto"
    """`auto`: each shard is read once for all nodes of a gang, which pass it on; or `never`."""
    overlap: bool = False
    """Training starts when the first shards are in; the rest comes while it runs."""

    @model_validator(mode="after")
    def _check(self) -> StageSpec:
        if self.overlap and self.partial:
            raise ValueError("overlap stages the whole dataset: it goes without partial")
        return self


class DataSpec(Record):
    """How samples become batches."""

    global_batch_size: int = Field(default=128, ge=1)
    """Samples an optimizer step, over all ranks and accumulated batches."""
    shuffle: bool = True
    """Shuffle the training split anew each epoch, by seed."""
    shuffle_window: int | None = Field(default=None, ge=1)
    """Shards that are shuffled together, for shared storage and S3; null: the whole split."""
    sampling: Name = "uniform"
    """`uniform`: each sample once an epoch; `balanced`: classes alike; or a field of weights."""
    samples_per_epoch: int | None = Field(default=None, ge=1)
    """Samples drawn an epoch when sampling is not uniform; null: as many as the split has."""
    fold: int | None = Field(default=None, ge=0)
    """Fold of `dataset.folds` to validate on, from 0; the others are trained on. Null: all are."""
    drop_last: bool = True
    """Leave out the last training batch when it is not full."""
    prefetch: int = Field(default=4, ge=0)
    """Batches that each rank reads ahead, by half as many threads; 0: read when asked for."""
    pad: float | None = None
    """Ragged arrays are filled up with this to the longest of the batch; null gives lists."""
    read_ahead: int | None = Field(default=None, ge=1)
    """Shards fetched ahead when they are not on the node; null: one window, at least 2."""
    verify_samples: bool = False
    """Compare the checksum of each sample that is read; reading is about ten times slower."""
    on_bad_shard: Literal["stop", "skip"] = "stop"
    """`skip`: check all shards at the start of a run, train without the damaged ones."""
    sample_transforms: tuple[Target, ...] = ()
    """Callables `sample -> sample` before batches are formed; `generator` is None in evaluation."""
    transforms: tuple[Target, ...] = ()
    """Callables `batch -> batch`, applied in order in training and evaluation."""
    augment: tuple[Target, ...] = ()
    """Callables `batch -> batch`, applied after `transforms` in training only."""

    @model_validator(mode="after")
    def _check(self) -> DataSpec:
        weighted = self.sampling != "uniform"
        if weighted and (self.shuffle_window is not None or not self.shuffle):
            raise ValueError(
                f"sampling '{self.sampling}' draws from the whole split: "
                "it goes with shuffle: true and without shuffle_window"
            )
        if self.samples_per_epoch is not None and not weighted:
            raise ValueError("samples_per_epoch goes with sampling balanced or by weights")
        if self.shuffle_window is not None and not self.shuffle:
            raise ValueError("shuffle_window goes with shuffle: true")
        if self.read_ahead is not None and self.read_ahead < (self.shuffle_window or 1):
            raise ValueError("read_ahead must be at least shuffle_window: batches span two windows")
        return self


class TrainerSpec(Record):
    """Lightning's Trainer, checkpoints and what stops training."""

    target: str = Field(default="lightning.pytorch.Trainer", alias="_target_")
    """The Trainer class."""
    max_epochs: int = Field(default=10, ge=1)
    """Passes over the training split."""
    max_steps: int = Field(default=-1, ge=-1)
    """Stop after this many optimizer steps; -1 for no limit."""
    precision: str = "32-true"
    """Lightning's precision: 32-true, 16-mixed, bf16-mixed, …"""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """Device kind."""
    gradient_clip_val: float | None = Field(default=None, ge=0)
    """Clip the gradient norm at this value."""
    accumulate_grad_batches: int = Field(default=1, ge=1)
    """Batches an optimizer step, which has `data.global_batch_size` samples in all."""
    val_every_epochs: int = Field(default=1, ge=1)
    """Validate after every so many epochs."""
    deterministic: bool = True
    """Use only deterministic kernels."""
    checkpoint_every_steps: int = Field(default=100, ge=1)
    """Write a checkpoint after every so many optimizer steps."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept."""
    monitor: str | None = None
    """Metric that the model logs, such as `val_loss`: the weights with its best value are kept."""
    monitor_mode: Literal["min", "max"] = "min"
    """Whether the metric is better when it is lower, `min`, or higher, `max`."""
    stop_on_nan: bool = True
    """End the step with an error when the loss is NaN or infinite."""
    callbacks: tuple[Target, ...] = ()
    """Further Lightning callbacks."""
    loggers: tuple[Target, ...] = ()
    """Lightning loggers; `save_dir` defaults to the run's folder."""
    extra: dict[str, object] = {}
    """Further arguments of the Trainer, passed as they are. Those of Lightning's may as well be
    written beside the keys above: `limit_train_batches`, `val_check_interval`, `profiler`, …"""

    @model_validator(mode="before")
    @classmethod
    def _pass_on(cls, content: object) -> object:
        """Take arguments of Lightning's Trainer by their own names."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        if not isinstance(content, Mapping) or content.keys() <= known:
            return content
        from headrace.recipe.arguments import trainer_arguments  # it reads Lightning's source

        passed = (content.keys() - known - OF_LIGHTNING.keys()) & set(trainer_arguments())
        extra = content.get("extra") or {}
        twice = sorted(passed & extra.keys()) if isinstance(extra, Mapping) else []
        if twice:
            raise ValueError(f"'{twice[0]}' is written twice, also in extra: leave one out")
        kept = {name: value for name, value in content.items() if name not in passed}
        return {**kept, "extra": {**extra, **{name: content[name] for name in sorted(passed)}}}

    @field_validator("extra")
    @classmethod
    def _leaves_ours(cls, extra: dict[str, object]) -> dict[str, object]:
        taken = sorted(set(extra) & OF_LIGHTNING.keys())
        if taken:
            instead = "; ".join(f"{name}: {OF_LIGHTNING[name]}" for name in taken)
            raise ValueError(f"it sets {', '.join(taken)}, which headrace sets itself ({instead})")
        return extra


class TrainSpec(Record):
    """How training is launched."""

    role: Name = "gpu"
    """The site's role that trains and evaluates."""
    nodes: int | None = Field(default=None, ge=1)
    """Nodes of the gang; null takes the site's number."""
    ranks_per_node: int | None = Field(default=None, ge=1)
    """Ranks on each node; null takes the site's number."""
    script: str | None = None
    """A script that runs under torchrun, in place of `model` and `trainer`."""
    args: tuple[str, ...] = ()
    """Arguments of the script."""
    init_from: str | None = None
    """Checkpoint whose weights training begins with, as of another run; null: the model's own."""
    init_strict: bool = True
    """All weights must be there by name and shape; `false` takes those that fit."""
    max_restarts: int = Field(default=3, ge=0)
    """Restarts of all ranks from the last checkpoint after a rank or worker died."""
    hang_timeout: Annotated[Seconds, Field(gt=0)] = 300.0
    """All ranks are restarted when one shows no sign of life for this time."""
    timeout: Seconds | None = None
    """Longest time one attempt may take."""


class EvaluateSpec(Record):
    """How the trained model is judged."""

    split: Name = "test"
    """Split to evaluate on."""
    checkpoint: Literal["last", "best"] | Annotated[int, Field(ge=1)] = "last"
    """Which one is evaluated: the `last` of training, the `best` by `trainer.monitor`, or the one
    after so many optimizer steps, while it is kept."""
    batch_size: int = Field(default=512, ge=1)
    """Samples a forward pass."""
    task: Literal["multiclass", "regression"] = "multiclass"
    """What the model's output means."""
    min_metrics: dict[str, float] = {}
    """The step fails when a metric is below its value here."""


class Recipe(Record):
    """One recipe: dataset, pack, stage, model, data, trainer, evaluate."""

    name: Name
    """Name of the recipe."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of weights, sample order and augmentation."""
    code: tuple[str, ...] = ()
    """Folders put on the module path for `_target_`; the site must allow them."""
    pack_role: Name = "cpu"
    """The site's role that packs."""
    dataset: DatasetSpec
    """Raw samples."""
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
    evaluate: EvaluateSpec | None = EvaluateSpec()
    """Evaluation; null leaves it out."""

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        if (self.model is None) == (self.train.script is None):
            raise ValueError("give either 'model' or 'train.script'")
        if self.train.script is not None and self.train.init_from is not None:
            raise ValueError("train.init_from goes with 'model': a script loads weights by itself")
        if self.train.script is not None and self.evaluate is not None:
            raise ValueError("a training script has no model to evaluate: set 'evaluate: null'")
        if self.stage.overlap:
            self._check_overlap()
        if self.evaluate and self.evaluate.checkpoint == "best" and not self.trainer.monitor:
            raise ValueError(
                "evaluate.checkpoint is 'best', by no metric: set trainer.monitor, as in val_loss"
            )
        if self.train.script is not None and self.data.on_bad_shard == "skip":
            raise ValueError("data.on_bad_shard: skip goes with 'model': a script reads by itself")
        if self.dataset.source is not None:
            self._check_fold()
            self._check_evaluated()
        return self

    def _check_fold(self) -> None:
        fold, folds = self.data.fold, self.dataset.folds
        if fold is None:
            return
        if folds is None:
            raise ValueError(
                f"data.fold is {fold}, but the dataset is packed without folds: "
                "set dataset.folds, or data.fold to null"
            )
        if fold >= folds:
            raise ValueError(
                f"data.fold is {fold}, but dataset.folds is {folds}: give one from 0 to {folds - 1}"
            )

    def _check_evaluated(self) -> None:
        splits, folds = self.dataset.splits, self.dataset.folds
        if self.evaluate is None or self.evaluate.split in splits:
            return
        if folds is not None and self.evaluate.split == VALIDATION:
            if self.data.fold is None:
                raise ValueError(
                    "evaluate.split is 'val', which is one of the folds: "
                    f"set data.fold, from 0 to {folds - 1}"
                )
            return
        raise ValueError(
            f"evaluate.split is '{self.evaluate.split}', but dataset.splits has {', '.join(splits)}"
        )

    def _check_overlap(self) -> None:
        if self.train.script is not None:
            raise ValueError("stage.overlap goes with 'model': a script expects all shards")
        if self.data.sampling != "uniform":
            raise ValueError(
                f"stage.overlap goes with data.sampling uniform: '{self.data.sampling}' draws "
                "from the whole split at once"
            )
