"""The recipe: what is done to which data, never where."""

from __future__ import annotations

from pydantic import Field, model_validator

from headrace.recipe.base import Name, Target
from headrace.recipe.data import VALIDATION, DataSpec, StageSpec
from headrace.recipe.dataset import DatasetSpec, PackSpec
from headrace.recipe.training import EvaluateSpec, TrainerSpec, TrainSpec
from headrace.record import Record


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
        if self.train.script is not None and self.evaluate is not None:
            raise ValueError("a training script has no model to evaluate: set 'evaluate: null'")
        if self.stage.overlap:
            self._check_overlap()
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
