"""What a script (`train.script`) or function (`train.function`) may ask of headrace, and tell it.

A script needs none of this: it is started once for each rank with the environment that torchrun
gives, and ends with exit code 0 when it has trained. See `docs/how-to/train-with-a-script.md`.
Everything here works without headrace around the script, too, where that makes sense: `report`
then does nothing, and `dataset` and `saving` need the variables that they name.
"""

from __future__ import annotations

import atexit
import dataclasses
import faulthandler
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, SupportsFloat

from headrace.checkpoints import files as checkpoints
from headrace.errors import UserError
from headrace.files.atomic import is_there, read_record, write_record
from headrace.files.layout import RunFolder
from headrace.recipe.dataset import TRAIN, VALIDATION
from headrace.steps.context import resolved
from headrace.training.launch_records import NodeLaunch, NodeReady, Paused, TrainingProgress
from headrace.training.progress import ScriptReports

if TYPE_CHECKING:  # they import torch, which a script may do without
    from headrace.data.dataset import SampleDataset
    from headrace.data.loader import BatchLoader
    from headrace.data.loaders import Loaders


def dataset(split: str, fields: Sequence[str] | None = None) -> SampleDataset:
    """Samples of a split of the staged dataset, for a DataLoader of your own.

    Share them out over ranks yourself, as by torch's DistributedSampler; `loader` does so.
    `fields` are names of those wanted, by default all.
    """
    from headrace.data.dataset import SampleDataset

    node = _node()
    folder, source = dataset_folder(), None
    if node is not None and resolved(_run(node))[0].stage.partial:
        source = node.launch.dataset
    return SampleDataset(folder, split, fields, source=source)


def dataset_folder() -> Path:
    """Folder of the staged dataset on this node, as `HEADRACE_DATASET`.

    For a function (`train.function`) the first call stages it, and it is in use until the end.
    """
    node = _node()
    if node is not None and not node.launch.dataset:
        raise UserError(
            "The recipe has no 'dataset', so there is none to read",
            "Name one in the recipe, as in dataset: {name: mine, source: /data/mine}, or let the "
            "script bring its own data, without script.dataset and script.loader.",
        )
    return Path(_told("HEADRACE_DATASET")) if node is None or node.dataset else _staged()


def loader(split: str = TRAIN) -> BatchLoader:
    """Batches of this rank, by the keys of the recipe's `data`; the same loader each time.

    Training batches follow the global order: each sample once an epoch over all ranks, shuffled by
    the seed, for any number of ranks. Call `set_epoch(epoch)` before each pass. Save its
    `state_dict()` and give it to `load_state_dict` to go on at the same sample. Validation takes
    each sample exactly once over all ranks.

    Raises:
        UserError: Another split, or the recipe has transforms of batches, which are the script's.
    """
    if split == TRAIN:
        return _loaders().train
    if split == VALIDATION:
        return _loaders().validation()
    raise UserError(
        f"There is no loader of the split '{split}'",
        f"Valid: {TRAIN}, {VALIDATION}; headrace.script.dataset takes any split.",
    )


def newest() -> Path | None:
    """The checkpoint to go on from, the same for all ranks; None when there is none.

    The newest file or folder in the folder of checkpoints when the ranks were started; archives, as
    of `torch.save`, that are torn are passed over.
    """
    found = os.environ.get("HEADRACE_RESUME")
    return Path(found) if found else None


@contextmanager
def saving(name: str) -> Iterator[Path]:
    """A path to write a checkpoint to, file or folder; it gets its `name` only when it is whole."""
    final = Path(_told("HEADRACE_CHECKPOINTS")) / name
    final.parent.mkdir(parents=True, exist_ok=True)
    prepared = final.with_name(f".{name}.{os.getpid()}.partial")
    try:
        yield prepared
    except BaseException:
        checkpoints.remove(prepared)
        raise
    checkpoints.publish(prepared, final)


def report(
    step: int,
    epoch: int = 0,
    *,
    total_steps: int | None = None,
    samples: int | None = None,
    **metrics: SupportsFloat,
) -> None:
    """Tell how far training is: a sign of life of this rank, and of rank 0 what `status` shows.

    Cheap: tensors are read about once a second, when it is written, and at the end. Metrics that
    the call before had not, as of a validation, are written at once, and to the history. From the
    first call on, a rank that is silent for `train.hang_timeout` hangs: all are started again.

    Args:
        step: Optimizer steps done.
        epoch: Epoch under way, from 0.
        total_steps: Optimizer steps there will be, for the time left.
        samples: Samples trained so far by all ranks, for the rate; `loader` counts them itself.
        metrics: Numbers by name, as `loss` and `val_accuracy`; the last of each are the run's.
    """
    reporter = _reporter()
    if reporter is not None:
        now = TrainingProgress(epoch=epoch, step=step, total_steps=total_steps)
        reporter.take(now, samples, metrics)


def stop_asked(needed_s: float = 30.0) -> bool:
    """Whether to save and `pause`, as the machines are given back soon.

    All ranks call it at the same step, and get the answer of rank 0 where torch.distributed is in
    use. `needed_s` seconds are needed for a step and to save.
    """
    node = _node()
    if node is None:
        return False
    asked = _is_over(node.launch, needed_s)
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return asked
    answers = [asked]
    distributed.broadcast_object_list(answers, src=0)
    return answers[0]


def pause(step: int) -> NoReturn:
    """End this rank after a checkpoint at `step`: the training goes on from there elsewhere."""
    node = _node()
    if node is not None and _rank() == 0:
        write_record(node.launch.folder.paused, Paused(step=step))
    sys.exit(0)


@cache
def _reporter() -> ScriptReports | None:
    node = _node()
    if node is None:
        return None
    faulthandler.enable()  # shows where the rank hung
    reports = ScriptReports(node.launch, _rank(), _loaded)
    atexit.register(reports.write)
    return reports


def _loaded() -> BatchLoader | None:
    return _loaders().train if _loaders.cache_info().currsize else None


@cache
def _loaders() -> Loaders:
    from headrace.data.instantiate import Allowed
    from headrace.data.loaders import Loaders
    from headrace.staging.gang_store import Traffic
    from headrace.training.rank_data import settings_of

    _told("HEADRACE_LAUNCH")
    node = _node()
    if node is None:
        raise UserError("The launch of this script is over", "Start it by headrace.")
    recipe, site = resolved(_run(node))
    if recipe.data.transforms or recipe.data.augment:
        raise UserError(
            "data.transforms and data.augment change batches on the way to a 'model'",
            "Take them out of the recipe and let the script do that; data.sample_transforms work.",
        )
    allowed = Allowed.of(recipe, site)
    node = node.model_copy(update={"dataset": node.dataset or str(dataset_folder())})
    settings = settings_of(node, _rank(), (recipe, site), allowed, Traffic())
    return Loaders(dataclasses.replace(settings, num_epochs=None))  # the script's own number


@cache
def _staged() -> Path:
    from headrace.staging.staged import StagingOptions, staged

    node = _node()
    if node is None:
        raise UserError("The launch of this function is over", "Start it by headrace.")
    recipe, site = resolved(_run(node))
    stage = recipe.stage
    options = StagingOptions(partial=stage.partial, s3=site.s3)
    copy = staged(node.launch.dataset, site.tiers, stage.splits, stage.verify, options=options)
    return _using.enter_context(copy).folder


_using = ExitStack()
"""The copy that a function reads, which is not evicted meanwhile."""


@cache
def _node() -> NodeReady | None:
    found = os.environ.get("HEADRACE_LAUNCH", "")
    if found.startswith("{"):  # of a function: all of it
        return NodeReady.model_validate_json(found)
    return read_record(Path(found), NodeReady) if found else None


def _run(node: NodeReady) -> RunFolder:
    return RunFolder(Path(node.launch.run_folder))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _told(name: str) -> str:
    found = os.environ.get(name)
    if not found:
        raise UserError(
            f"{name} is not set",
            "headrace sets it for train.script and train.function. To try yours by itself, set "
            "HEADRACE_DATASET and HEADRACE_CHECKPOINTS to folders; the loader works under headrace "
            "only.",
        )
    return found


def _is_over(launch: NodeLaunch, needed_s: float) -> bool:
    is_late = launch.stop_at is not None and time.time() + needed_s > launch.stop_at
    return is_late or (launch.notice != "" and is_there(Path(launch.notice)))
