"""The dataset on a node that trains: all of it before the ranks start, or the rest meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.clusters.cancellable_call import check_wanted, wanted
from headrace.data.order import by_first_use
from headrace.errors import StepCancelledError
from headrace.files.atomic import write_record, write_text
from headrace.files.manifest import Manifest
from headrace.objects.store import read_manifest_at
from headrace.recipe.dataset import TRAIN
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.staging.bringing import Arrival
from headrace.staging.gang_store import Brought
from headrace.staging.staged import StagedCopy, StagingOptions, staged
from headrace.training.launch_records import NodeLaunch, NodeStaged

_LOOK_S = 0.2


class DataOnNode:
    """A dataset on a node, where ranks read; here all of it came before they start."""

    def __init__(self, copy: StagedCopy | None = None) -> None:
        self._copy = copy

    @property
    def folder(self) -> Path:
        """Folder of the dataset on the node."""
        if self._copy is None:
            raise StepCancelledError("Staging was stopped before the first shards were there")
        return self._copy.folder

    @property
    def relayed(self) -> Brought:
        """What was read for other nodes so far."""
        if self._copy is None or self._copy.relayed is None:
            return Brought()
        return Brought(source_bytes=self._copy.relayed.brought.source_bytes)

    def keep_on(self) -> bool:
        """Whether nothing has gone wrong."""
        return True

    def check(self) -> None:
        """Raise what has gone wrong."""


def manifest_of(dataset: str, site: Site) -> Manifest:
    """What a dataset holds: no shard where there is none, since the script brings its own data."""
    if dataset:
        return read_manifest_at(dataset, site.s3)
    return Manifest(name="", fingerprint="", pack_key="", fields=(), splits={}, shards=())


@contextmanager
def data_on_node(
    launch: NodeLaunch, recipe: Recipe, site: Site, manifest: Manifest
) -> Iterator[DataOnNode]:
    """Put the dataset onto this node, where it stays while the block runs.

    With `stage.overlap` the block starts when the first shards are there. Without a dataset there
    is nothing to put.
    """
    if not launch.dataset:
        yield DataOnNode()
        return
    if recipe.stage.overlap:
        staging = _StagedMeanwhile(launch, recipe, site, manifest)
        try:
            staging.begin()
            yield staging
        finally:
            staging.end()
        return
    stage, skipped = recipe.stage, frozenset(launch.skipped)
    options = StagingOptions(
        partial=stage.partial,
        skipped=skipped,
        s3=site.s3,
        group=launch.group,
        serves_readers=launch.group is not None,
    )
    with staged(
        launch.dataset, site.tiers, stage.splits, stage.verify, check_wanted, options
    ) as copy:
        yield DataOnNode(copy)


class _StagedMeanwhile(DataOnNode):
    """Stages by a thread of its own, in the order in which samples are read."""

    def __init__(self, launch: NodeLaunch, recipe: Recipe, site: Site, manifest: Manifest) -> None:
        super().__init__()
        order, num_first = by_first_use(manifest, TRAIN, recipe.data, recipe.seed)
        arrival = Arrival(order=order, num_first=num_first, begun=self._begun)
        self._launch, self._stage, self._tiers = launch, recipe.stage, site.tiers
        self._options = StagingOptions(
            skipped=frozenset(launch.skipped), s3=site.s3, arrival=arrival
        )
        self._folder: Path | None = None
        self._error: BaseException | None = None
        self._readable = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="headrace-stage", daemon=True)

    @property
    def folder(self) -> Path:
        return super().folder if self._folder is None else self._folder

    def begin(self) -> None:
        """Start, and wait until the first shards are there."""
        self._thread.start()
        while not self._readable.wait(_LOOK_S):
            if not wanted():
                raise StepCancelledError("Staging was stopped: its step was cancelled or has gone")
        self.check()

    def end(self) -> None:
        """Stop staging, and let go of the copy; what has come stays."""
        self._ending.set()
        self._thread.join()

    def keep_on(self) -> bool:
        return self._error is None

    def check(self) -> None:
        if self._error is not None:
            write_text(self._launch.folder.stop, f"{self._launch.node_name}: {self._error}")
            raise self._error

    def _work(self) -> None:
        launch, stage = self._launch, self._stage
        started = time.perf_counter()
        try:
            with staged(
                launch.dataset,
                self._tiers,
                stage.splits,
                stage.verify,
                self._stop_at_end,
                self._options,
            ) as copy:
                self._tell(copy, time.perf_counter() - started)
                self._begun(copy.folder)
                self._ending.wait()
        except BaseException as error:  # noqa: BLE001  raised again by `check`
            if not self._ending.is_set():
                self._error = error
        finally:
            self._readable.set()

    def _begun(self, folder: Path) -> None:
        self._folder = folder
        self._readable.set()

    def _tell(self, copy: StagedCopy, seconds: float) -> None:
        record = NodeStaged(
            node=self._launch.node_name,
            tier=copy.tier,
            num_bytes=copy.num_bytes,
            copied_bytes=copy.copied_bytes,
            seconds=seconds,
            bytes_per_s=copy.copied_bytes / seconds,
        )
        write_record(self._launch.folder.staged(self._launch.node_index), record)

    def _stop_at_end(self, done_bytes: int, total_bytes: int) -> None:
        if self._ending.is_set():
            raise StepCancelledError(
                f"Training ended when {done_bytes} of {total_bytes} bytes were staged"
            )
