"""The recipe: what is done to which data, never where."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from headrace.recipe.base import Bytes, Fraction, Part, Seconds, Target

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""A name that is safe in file names: letters, digits, dot, underscore, hyphen."""


class DatasetSpec(Part):
    """Raw samples and how they are labelled and split."""

    name: Name
    """Name of the packed dataset."""
    source: str | None = None
    """Folder of raw samples; null when `path` names a packed dataset."""
    path: str | None = None
    """Folder of an already packed dataset; packing is then skipped."""
    include: tuple[str, ...] = ("**/*.png", "**/*.jpg", "**/*.jpeg", "**/*.bmp", "**/*.npy")
    """Glob patterns, relative to `source`, of the files that are samples."""
    labels: Literal["folders", "index", "none"] = "folders"
    """Where labels come from: the first folder name below `source`, an index file, or nowhere."""
    index: str | None = None
    """Index file below `source` (CSV or JSONL) with columns `path` and `label`."""
    splits: dict[Name, Fraction] = {"train": 0.8, "val": 0.1, "test": 0.1}
    """Share of the samples in each split; must add up to 1."""
    stratify: bool = True
    """Whether every split keeps the class shares of the whole."""
    split_seed: int = Field(default=0, ge=0)
    """Seed of the split and of the order of samples in the shards."""

    @model_validator(mode="after")
    def _check(self) -> DatasetSpec:
        if (self.source is None) == (self.path is None):
            raise ValueError("give either 'source' (raw samples) or 'path' (a packed dataset)")
        if self.labels == "index" and self.index is None:
            raise ValueError("labels: index needs 'index', the name of the CSV or JSONL file")
        if self.labels != "index" and self.index is not None:
            raise ValueError("both an index file and labels from folders are named; keep one")
        if abs(sum(self.splits.values()) - 1.0) > 1e-6:
            raise ValueError(f"splits add up to {sum(self.splits.values()):g}, not to 1")
        return self


class PackSpec(Part):
    """How raw samples become shards."""

    images: Literal["decode", "encoded"] = "decode"
    """Store pixels `(height, width[, channels]) uint8`, or the file's bytes as they are."""
    shard_bytes: Bytes = Bytes(64 * 2**20)
    """Aim for shards of about this size."""
    shard_samples: int | None = Field(default=None, ge=1)
    """Samples a shard; overrides `shard_bytes`."""
    max_quarantined: Fraction = 0.01
    """The step fails when a larger share of the samples cannot be read."""


class StageSpec(Part):
    """How shards get to the nodes' own storage."""

    verify: bool = True
    """Compare the checksum of every shard while it is copied."""
    splits: tuple[Name, ...] | None = None
    """Splits to stage; null stages all."""


class DataSpec(Part):
    """How samples become batches."""

    global_batch_size: int = Field(default=128, ge=1)
    """Samples an optimizer step, over all ranks."""
    shuffle: bool = True
    """Shuffle the training split anew each epoch, by seed."""
    drop_last: bool = True
    """Leave out the last training batch when it is not full."""
    transforms: tuple[Target, ...] = ()
    """Callables `batch -> batch`, applied in order in training and evaluation."""
    augment: tuple[Target, ...] = ()
    """Callables `batch -> batch`, applied after `transforms` in training only."""


class TrainerSpec(Part):
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
    """Batches an optimizer step."""
    val_every_epochs: int = Field(default=1, ge=1)
    """Validate after every so many epochs."""
    deterministic: bool = True
    """Use only deterministic kernels."""
    checkpoint_every_steps: int = Field(default=100, ge=1)
    """Write a checkpoint after every so many optimizer steps."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept."""
    stop_on_nan: bool = True
    """End the step with an error when the loss is NaN or infinite."""
    callbacks: tuple[Target, ...] = ()
    """Further Lightning callbacks."""
    loggers: tuple[Target, ...] = ()
    """Lightning loggers; `save_dir` defaults to the run's folder."""
    extra: dict[str, object] = {}
    """Further keyword arguments for the Trainer, passed as they are."""


class TrainSpec(Part):
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
    max_restarts: int = Field(default=3, ge=0)
    """Restarts of all ranks from the last checkpoint after a rank or worker died."""
    hang_timeout: Annotated[Seconds, Field(gt=0)] = 300.0
    """All ranks are restarted when one shows no sign of life for this time."""
    timeout: Seconds | None = None
    """Longest time one attempt may take."""


class EvaluateSpec(Part):
    """How the trained model is judged."""

    split: Name = "test"
    """Split to evaluate on."""
    batch_size: int = Field(default=512, ge=1)
    """Samples a forward pass."""
    task: Literal["multiclass", "regression"] = "multiclass"
    """What the model's output means."""
    min_metrics: dict[str, float] = {}
    """The step fails when a metric is below its value here."""


class Recipe(Part):
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
        if self.train.script is not None and self.evaluate is not None:
            raise ValueError("a training script has no model to evaluate: set 'evaluate: null'")
        splits = self.dataset.splits
        if self.evaluate and self.dataset.source and self.evaluate.split not in splits:
            raise ValueError(
                f"evaluate.split is '{self.evaluate.split}', "
                f"but dataset.splits has {', '.join(splits)}"
            )
        return self
