"""Tasks of workers, a shard each; the plan of a shard is written when a worker asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import overload

from headrace.packing.packed import DatasetFolder, ShardTask
from headrace.packing.plan import PlannedShard
from headrace.storage.atomic import write_text
from headrace.storage.room import told_when_full


class ShardTasks(Sequence[ShardTask]):
    """Tasks of shards; workers are busy with the first while the plans of others are written.

    Args:
        pattern: A task, `file` left out.
        folder: The dataset's folder.
        shards: Their plans.
    """

    def __init__(
        self, pattern: ShardTask, folder: DatasetFolder, shards: Sequence[PlannedShard]
    ) -> None:
        self._pattern = pattern
        self._folder = folder
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    @overload
    def __getitem__(self, index: int) -> ShardTask: ...

    @overload
    def __getitem__(self, index: slice) -> ShardTasks: ...

    def __getitem__(self, index: int | slice) -> ShardTask | ShardTasks:
        """A task, once the plan of its shard is on the disk.

        Raises:
            StorageFullError: There is no room for the plan.
        """
        if isinstance(index, slice):
            return ShardTasks(self._pattern, self._folder, self._shards[index])
        shard = self._shards[index]
        text = shard.model_dump_json()
        with told_when_full(self._folder.parts, len(text)):
            write_text(self._folder.plan_file(shard.file), text)
        return replace(self._pattern, file=shard.file)
