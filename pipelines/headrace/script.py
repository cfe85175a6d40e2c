"""What a script (`train.script`) or function (`train.function`) may ask of or report to headrace.

A script may do without it: headrace starts it once for each rank with the environment of torchrun,
and exit code 0 means that it has trained. See `docs/how-to/train-with-a-script.md`. The functions
also work in a script that was started without headrace, where possible: `report` then does nothing,
and `dataset` and `saving` need the variables that they name.
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
from typing import TYPE_CHECKING, Any, NoReturn, SupportsFloat

from headrace.checkpoints import files as checkpoints
from headrace.errors import UserError
from headrace.files.atomic import is_there, read_record, write_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.recipe.dataset import TRAIN, VALIDATION
from headrace.steps.context import resolved
from headrace.training.launch_records import NodeLaunch, NodeReady, Paused, TrainingProgress
from headrace.training.progress import ScriptReports

if TYPE_CHECKING:  # they import torch, which a script may not need
    from headrace.data.dataset import SampleDataset
    from headrace.data.loader import BatchLoader
    from headrace.data.loaders import Loaders


def dataset(split: str, fields: Sequence[str] | None = None) -> SampleDataset:
    """Return the samples of a split of the staged dataset, for your own DataLoader.

    Divide them over ranks yourself, as by torch's DistributedSampler; `loader` does so.
    `fields` are the names of the wanted fields, by default all.
    """
    from headrace.data.dataset import SampleDataset

    node = _node()
    folder, source = dataset_folder(), None
    if node is not None and resolved(_run(node))[0].stage.partial:
        source = node.launch.dataset
    return SampleDataset(folder, split, fields, source=source)


def dataset_folder() -> Path:
    """Return the folder of the staged dataset on this node, as `HEADRACE_DATASET`.

    For a function (`train.function`) the first call stages it. It stays in use until the end.
    """
    node = _node()
    if node is not None and not node.launch.dataset:
        raise UserError(
            "The recipe has no 'dataset', so there is no data to read",
            "Add one to the recipe, as in dataset: {name: mine, source: /data/mine}. Or let the "
            "script read its own data, without script.dataset and script.loader.",
        )
    return Path(_variable("HEADRACE_DATASET")) if node is None or node.dataset else _staged()


def loader(split: str = TRAIN) -> BatchLoader:
    """Return this rank's batches, by the keys of the recipe's `data`; the same loader each time.

    Training batches follow the global order: each sample once an epoch over all ranks, shuffled by
    the seed, for any number of ranks. Call `set_epoch(epoch)` before each pass. To continue at the
    same sample, save its `state_dict()` and pass it to `load_state_dict`. Validation has each
    sample exactly once over all ranks.

    Raises:
        UserError: The split has no loader, or the recipe has transforms of batches.
    """
    if split == TRAIN:
        return _loaders().train
    if split == VALIDATION:
        return _loaders().validation()
    raise UserError(
        f"There is no loader of the split '{split}'",
        f"Valid: {TRAIN}, {VALIDATION}; headrace.script.dataset takes any split.",
    )


@contextmanager
def client() -> Iterator[Any]:
    """Yield a Dask client of the lease, whose calls run on all its nodes: `client.map(f, items)`.

    A node runs one call for each of its threads, in its worker's process, with the modules of
    `code`. At the end of the block, waiting calls are dropped; a running call ends by itself.
    """
    from headrace.clusters.fleet import client_of

    with client_of(LeaseFolder(Path(_launched().launch.notice).parent)) as connected:
        yield connected


def newest() -> Path | None:
    """Return the checkpoint to continue from, the same for all ranks; None if there is none.

    It is the newest file or folder in the folder of checkpoints at the start of the ranks. Torn
    archives, as of `torch.save`, are skipped.
    """
    found = os.environ.get("HEADRACE_RESUME")
    return Path(found) if found else None


@contextmanager
def saving(name: str) -> Iterator[Path]:
    """Yield a path to write a checkpoint (file or folder) to; it gets its `name` once complete."""
    final = Path(_variable("HEADRACE_CHECKPOINTS")) / name
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
    """Report progress: the heartbeat of this rank; `headrace status` shows that of rank 0.

    Cheap: tensors are read about once a second, when the report is written, and at the end. Metrics
    that the previous call lacked, as of a validation, are written at once, and to the history. From
    the first call on, a rank without a report for `train.hang_timeout` hangs: all ranks restart.

    Args:
        step: Optimizer steps done.
        epoch: Current epoch, from 0.
        total_steps: Optimizer steps of the whole training, for the time left.
        samples: Samples trained so far by all ranks, for the rate; `loader` counts them itself.
        metrics: Numbers by name, as `loss` and `val_accuracy`; the last of each are the run's.
    """
    reporter = reporter_of_rank()
    if reporter is not None:
        now = TrainingProgress(epoch=epoch, step=step, total_steps=total_steps)
        reporter.take(now, samples, metrics)


def stop_asked(needed_s: float = 30.0) -> bool:
    """Whether to save and `pause`, because the machines are released soon.

    Call it on all ranks at the same step. If torch.distributed is in use, all get the answer of
    rank 0. `needed_s` are the seconds for a step and to save.
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
    """End this rank after a checkpoint at `step`; the training continues from it elsewhere."""
    node = _node()
    if node is not None and _rank() == 0:
        write_record(node.launch.folder.paused, Paused(step=step))
    sys.exit(0)


@cache
def reporter_of_rank() -> ScriptReports | None:
    """Return what takes the reports of this rank; None outside of headrace."""
    node = _node()
    if node is None:
        return None
    if not faulthandler.is_enabled():
        faulthandler.enable()  # prints where the rank hung
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

    node = _launched()
    recipe, site = resolved(_run(node))
    if recipe.data.transforms or recipe.data.augment:
        raise UserError(
            "data.transforms and data.augment need a 'model', but this recipe has a script",
            "Remove them and transform batches in the script; data.sample_transforms work.",
        )
    allowed = Allowed.of(recipe, site)
    node = node.model_copy(update={"dataset": node.dataset or str(dataset_folder())})
    settings = settings_of(node, _rank(), (recipe, site), allowed, Traffic())
    return Loaders(dataclasses.replace(settings, num_epochs=None))  # the script decides


@cache
def _staged() -> Path:
    from headrace.staging.staged import staged
    from headrace.staging.tier_choice import StagingOptions

    node = _launched()
    recipe, site = resolved(_run(node))
    stage, options = recipe.stage, StagingOptions(partial=recipe.stage.partial, s3=site.s3)
    copy = staged(node.launch.dataset, site.tiers, stage.splits, stage.verify, options=options)
    return _using.enter_context(copy).folder


_using = ExitStack()
"""The copy that a function reads; it is not evicted meanwhile."""


@cache
def _node() -> NodeReady | None:
    found = os.environ.get("HEADRACE_LAUNCH", "")
    if found.startswith("{"):  # all of a function's launch, not a path
        return NodeReady.model_validate_json(found)
    return read_record(Path(found), NodeReady) if found else None


def _launched() -> NodeReady:
    _variable("HEADRACE_LAUNCH")
    if (node := _node()) is None:
        raise UserError("The launch of this script has ended", "Start the script by headrace.")
    return node


def _run(node: NodeReady) -> RunFolder:
    return RunFolder(Path(node.launch.run_folder))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _variable(name: str) -> str:
    found = os.environ.get(name)
    if not found:
        raise UserError(
            f"{name} is not set",
            "headrace sets it for train.script and train.function. To try your code without "
            "headrace, set HEADRACE_DATASET and HEADRACE_CHECKPOINTS to folders; the loader works "
            "only under headrace.",
        )
    return found


def _is_over(launch: NodeLaunch, needed_s: float) -> bool:
    is_late = launch.stop_at is not None and time.time() + needed_s > launch.stop_at
    return is_late or (launch.notice != "" and is_there(Path(launch.notice)))
