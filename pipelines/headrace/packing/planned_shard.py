"""The plan of one shard, and the file of an Arrow table in which the workers find it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field

from headrace.errors import StepError
from headrace.files.atomic import read_bytes, replacing
from headrace.files.machine import told_when_full
from headrace.packing.sample_table import SampleTable
from headrace.record import Record

_HEAD = b"shard"  # key of the schema's metadata


class PlannedShard(Record, arbitrary_types_allowed=True):
    """One shard: which samples it holds, in which order."""

    file: str
    """Path relative to the dataset's folder, as in `shards/train-00000.h5`."""
    split: str
    fold: int | None = None
    """Fold of all its samples; null when the split has no folds."""
    first_sample_id: int
    """`sample_id` of the first sample; the others follow."""
    every: dict[str, int]
    """By field of fixed shape: one in how many elements counts for its statistics; a field that is
    absent has none."""
    num_bytes: int
    """Upper bound of the size of the file."""
    listed: SampleTable = Field(exclude=True)
    """Its samples as the source lists them, perhaps among others."""
    places: Any = Field(default=None, exclude=True)
    """Indices of its samples in `listed`, in their order; None for all."""

    @property
    def num_samples(self) -> int:
        """Samples to pack."""
        return len(self.listed if self.places is None else self.places)

    @property
    def samples(self) -> SampleTable:
        """The samples; a plan that is not read from a file copies them at each call."""
        return self.listed if self.places is None else self.listed.take(self.places)

    def write(self, path: Path) -> None:
        """Write the plan to a file.

        Raises:
            StorageFullError: The disk is full.
        """
        import pyarrow as pa

        table = self.samples.compact().table
        table = table.replace_schema_metadata({_HEAD: self.model_dump_json()})
        with (
            told_when_full(path.parent, table.nbytes),
            replacing(path) as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table)

    @classmethod
    def read(cls, path: Path) -> PlannedShard | None:
        """Return the plan in a file; None if the file does not exist.

        Raises:
            StepError: The file is damaged, or of an earlier release.
        """
        import pyarrow as pa

        content = read_bytes(path)
        if content is None:
            return None
        try:
            table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
            return cls.model_validate(
                {**json.loads(table.schema.metadata[_HEAD]), "listed": SampleTable(table)}
            )
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise StepError(
                f"The plan {path} is damaged, or an earlier release wrote it: {error!r}",
                "Pack without pack.append, which makes a new dataset.",
            ) from error
