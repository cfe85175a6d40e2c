"""One rank of a training: `python -m headrace.training.rank NODE RANK`."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities import rank_zero_only

from headrace.checkpoints import files as checkpoints
from headrace.checkpoints.content import refusing
from headrace.checkpoints.files import best_of
from headrace.checkpoints.weights import load_weights, telling_misfit, weights_hash
from headrace.data.instantiate import Allowed, instantiate, instantiate_all
from headrace.data.loader import BatchLoader
from headrace.data.model_steps import check_model
from headrace.data.module import HeadraceDataModule
from headrace.data.sampling import seed_at
from headrace.errors import RecipeError, StepError, UserError, WorkerLostError
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.loggers import build_loggers, identity_of, shield
from headrace.processes.identity import begin_child
from headrace.recipe.evaluate import EvaluateSpec
from headrace.staging.gang_store import Brought, Traffic
from headrace.steps.context import resolved
from headrace.training.checkpoint_callbacks import (
    KeepBest,
    KeepSteps,
    StepCheckpoints,
    StopInTime,
    TrainingPausedError,
)
from headrace.training.checkpoint_writer import CheckpointWriter
from headrace.training.history_writer import KeepHistory, mean_over_ranks
from headrace.training.launch_records import NodeReady, TrainingOutcome
from headrace.training.learning_rates import look_no_more, scaling_callbacks
from headrace.training.own_checkpoints import OwnCheckpoints
from headrace.training.own_loaders import OwnLoaders
from headrace.training.progress import finite
from headrace.training.rank_data import settings_of
from headrace.training.rank_failures import describe
from headrace.training.rendezvous import meet
from headrace.training.strategies import ShardedStrategy, form
from headrace.training.trainer import LossGuard, SignsOfLife, StepSeed, StopAtStep, build_trainer
from headrace.training.watch_ranks import Beat

logger = logging.getLogger(__name__)

_NUM_SPARE = 4
"""Open files that a rank keeps to be able to write its failure."""


class RankTraining:
    """The training of one rank; `watch` are further callbacks."""

    def __init__(self, node: NodeReady, rank: int, *watch: Callback) -> None:
        self._node, self._launch, self._rank, self._watch = node, node.launch, rank, watch
        self._folder = node.launch.folder
        self._run = RunFolder(Path(node.launch.run_folder))
        self._recipe, self._site = resolved(self._run)
        self._allowed = Allowed.of(self._recipe, self._site)
        self._traffic = Traffic()

    def run(self) -> None:
        """Train from the checkpoint or from scratch to the end; rank 0 writes the outcome."""
        beat = Beat(self._folder.beat(self._rank))
        data_rank = self._recipe.trainer.data_rank(self._rank)
        data = self._data()
        loader: BatchLoader | OwnLoaders = (
            data.train_loader
            if isinstance(data, HeadraceDataModule)
            else OwnLoaders(self._recipe.seed, data_rank, beat.tick)
        )
        model = self._model()
        guard = LossGuard(self._recipe.trainer.stop_on_nan)
        saving = self._saving(guard)
        data_ranks = self._recipe.trainer.data_ranks(self._launch.world_size)
        history = KeepHistory(self._run, self._launch, loader, data_ranks, lambda: saving.waited_s)
        trainer = self._trainer(data, beat, guard, saving, history)
        if isinstance(loader, OwnLoaders):
            loader.attach(trainer)
        if isinstance(trainer.strategy, ParallelStrategy):
            meet(trainer.strategy, self._launch, self._rank)
        try:
            resume, pickled = self._launch.resume, self._site.pickled_checkpoints == "allow"
            with refusing(resume), telling_misfit(model, resume, pickled=pickled):
                trainer.fit(model, datamodule=data, ckpt_path=resume, weights_only=not pickled)
        except torch.cuda.OutOfMemoryError as error:
            tier = data.tier if isinstance(data, HeadraceDataModule) else None
            if tier is None or not tier.is_used:
                raise
            self._folder.full_gpu.touch()
            raise WorkerLostError(
                "GPU memory ran out beside the training split, which a restart leaves on the host: "
                f"{error}",
                "Raise `reserve` or lower `budget` of the site's tier `gpu`.",
            ) from error
        finally:
            if self._traffic.brought != Brought():
                write_record(self._folder.streamed(self._rank), self._traffic.brought)
        self._finish(trainer, saving, history)

    def _data(self) -> LightningDataModule | None:
        """Return the samples of the dataset, or the user's own; None if the model has loaders."""
        if self._recipe.dataset is not None:
            given = (self._recipe, self._site)
            settings = settings_of(self._node, self._rank, given, self._allowed, self._traffic)
            return HeadraceDataModule(settings)
        own = self._recipe.datamodule
        return None if own is None else instantiate(own, self._allowed, "datamodule")

    def _model(self) -> LightningModule:
        target = self._recipe.model
        if target is None:
            raise RecipeError("The recipe has no model", "Set 'model', or 'train.script'.")
        seed_at(self._recipe.seed, 0, 0, 0, "weights")  # the same on all ranks
        model: LightningModule = instantiate(target, self._allowed, "model")
        check_model(model, self._recipe, trains=True)
        if self._rank == 0 and self._launch.resume is None:
            _check_metrics(self._recipe.evaluate, self._allowed)
        train, pickled = self._recipe.train, self._site.pickled_checkpoints == "allow"
        if train.init_from is not None and self._launch.resume is None:
            path = Path(train.init_from).expanduser()
            load_weights(model, path, strict=train.init_strict, pickled=pickled)
        form(model, self._recipe.trainer)
        return model

    def _saving(self, guard: LossGuard) -> StepCheckpoints:
        writer = CheckpointWriter(
            token=self._launch.token,
            before=guard.check,
            plain=self._site.pickled_checkpoints == "refuse",
            in_background=self._recipe.trainer.async_checkpoints,
        )
        return StepCheckpoints(
            self._run.checkpoints,
            every_steps=self._recipe.trainer.checkpoint_every_steps,
            prune=partial(
                checkpoints.prune, self._run.checkpoints, self._recipe.trainer.keep_checkpoints
            ),
            writer=writer,
        )

    def _trainer(
        self,
        data: LightningDataModule | None,
        beat: Beat,
        guard: LossGuard,
        saving: StepCheckpoints,
        history: KeepHistory,
    ) -> Trainer:
        launch, rank, recipe = self._launch, self._rank, self._recipe.trainer
        step = StepFolder(Path(launch.step_folder))
        of = self._run, step, self._node.fingerprint, self._recipe, self._site
        identity = None if rank else identity_of(*of)
        loggers = build_loggers(self._recipe, self._allowed, self._run.tensorboard, identity)
        for each in loggers:
            shield(each, self._run)
        evaluate = self._recipe.evaluate
        seed = StepSeed(self._recipe.seed, recipe.data_rank(rank))
        named = instantiate_all(recipe.callbacks, self._allowed, "trainer.callbacks")
        if launch.resume is not None:
            look_no_more(named)
        scaling = scaling_callbacks(recipe, self._recipe.data.global_batch_size)
        in_time = StopInTime(launch, saving, self._folder.paused)
        best = () if recipe.monitor is None else (KeepBest(saving, recipe),)
        kept = KeepSteps(saving, recipe, evaluate.steps if evaluate else ())
        own = OwnCheckpoints(self._run.callbacks, last=(in_time, saving))
        last = (guard, StopAtStep(recipe.max_steps), *best, kept, in_time, history, own, saving)
        return build_trainer(
            recipe,
            self._allowed,
            launch.num_nodes,
            launch.ranks_per_node,
            callbacks=[SignsOfLife(beat), *self._watch, seed, *scaling, *named, *last],
            logger=loggers or False,
            default_root_dir=str(self._run.path),
            **_sharing(data),
        )

    def _finish(self, trainer: Trainer, saving: StepCheckpoints, history: KeepHistory) -> None:
        if trainer.optimizers and not trainer.global_step:
            raise UserError(
                "Training ended without an optimizer step",
                "A callback stopped it at once, or the recipe's `trainer` leaves no batch to train "
                "on.",
            )
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        shared = mean_over_ranks({**saving.metrics, **logged, "data_wait": history.data_wait})
        weights_xxh3 = _weights_hash(trainer)
        if not trainer.is_global_zero:
            return
        best = best_of(self._run.checkpoints)
        outcome = TrainingOutcome(
            fingerprint=self._node.fingerprint,
            checkpoint=str(saving.final),
            best_checkpoint=str(self._run.checkpoints / best.file) if best else "",
            epochs=trainer.current_epoch,
            steps=trainer.global_step,
            world_size=self._launch.world_size,
            data_wait=shared.pop("data_wait"),
            metrics=({} if (loss := finite(history.loss)) is None else {"loss": loss}) | shared,
            weights_xxh3=weights_xxh3,
            notes=history.notes,
        )
        write_record(self._folder.trained, outcome)


def _weights_hash(trainer: Trainer) -> str:
    """Return the hash of the whole weights, which ranks gather if they are sharded."""
    if isinstance(trainer.strategy, ShardedStrategy):
        return weights_hash(trainer.lightning_module.state_dict())
    weights = trainer.strategy.lightning_module_state_dict()
    return weights_hash(weights) if trainer.is_global_zero else ""


def _sharing(data: LightningDataModule | None) -> dict[str, Any]:
    """Return arguments of the Trainer that say who shares samples out over the ranks."""
    if not isinstance(data, HeadraceDataModule):
        return {"use_distributed_sampler": True}
    return {"limit_val_batches": None if data.has_validation else 0}


def _check_metrics(spec: EvaluateSpec | None, allowed: Allowed) -> None:
    """Refuse metrics that the evaluation after training could not make."""
    for name, target in spec.metrics.items() if spec else ():
        instantiate(target, allowed, f"evaluate.metrics.{name}")


def main(arguments: list[str]) -> int:
    """Entry point of a rank."""
    begin_child()
    spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(_NUM_SPARE)]
    rank_zero_only.rank = int(os.environ["RANK"])  # as Lightning takes it when it is imported
    node, rank = read_record(Path(arguments[0]), NodeReady), int(arguments[1])
    if node is None:
        raise StepError(f"{arguments[0]} does not exist")
    done = node.launch.folder.done(rank)
    try:
        RankTraining(node, rank).run()
        done.touch()
    except TrainingPausedError as paused:
        logger.info("%s", paused)
        done.touch()
        _leave(0)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        for file in spare:  # the user's code may have left none
            os.close(file)
        write_record(node.launch.folder.failure(rank), describe(error, rank))
        logger.exception("Rank %d failed", rank)
        _leave(1)
    return 0


def _leave(code: int) -> NoReturn:
    """End at once: an orderly exit would wait for other ranks, which may never answer."""
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
