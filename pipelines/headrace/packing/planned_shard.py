"""The plan of one shard, and the file of Arrow columns in which the workers find it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StepError
from headrace.files.atomic import read_bytes, replacing
from headrace.files.machine import told_when_full
from headrace.packing.listed import (
    Coded,
    Listed,
    PlacesInContainers,
    RowPaths,
    Texts,
    Times,
    narrow,
    numbers,
    taken,
)
from headrace.record import Record

_HEAD = b"headrace"
_PLACE = "place_"


class _Head(Record):
    """What is known of the shard as a whole."""

    file: str
    split: str
    fold: int | None = None
    first_sample_id: int
    every: dict[str, int] = {}
    num_bytes: int
    containers: tuple[tuple[str, int], ...] = ()
    """Names of the containers that its rows are in, and how many rows each has."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedShard:
    """One shard: which samples it holds, in which order."""

    file: str
    """Path relative to the dataset's folder, as in `shards/train-00000.h5`."""
    split: str
    fold: int | None = None
    """Fold of all its samples; null when the split has no folds."""
    first_sample_id: int
    """`sample_id` of the first sample; the others follow."""
    listed: Listed
    """Its samples as the source knows them, maybe with others."""
    indices: Sequence[int]
    """Class index of each that is listed; empty without labels."""
    places: NDArray[Any] | None = None
    """Which of those that are listed it holds, in their order; None for all."""
    every: dict[str, int]
    """By field of fixed shape: one in how many elements counts for its statistics; a field that is
    not there has none."""
    num_bytes: int
    """Size of the file, estimated from above."""

    @property
    def num_samples(self) -> int:
        """Samples to pack."""
        return len(self.listed if self.places is None else self.places)

    @property
    def samples(self) -> Listed:
        """The samples; a plan that is not read from a file makes their columns at each call."""
        return self.listed if self.places is None else self.listed.at(self.places)

    @property
    def labels(self) -> Sequence[int]:
        """Class index of each sample; empty without labels."""
        if self.places is None or not len(self.indices):
            return self.indices
        return taken(self.indices, self.places)

    def write(self, path: Path) -> None:
        """Write the plan to a file.

        Raises:
            StorageFullError: There is no room.
        """
        import pyarrow as pa

        samples, labels = self.samples, self.labels
        paths = samples.paths.tight() if isinstance(samples.paths, RowPaths) else samples.paths
        columns = _columns(replace(samples, paths=paths))
        if len(labels):
            columns["label"] = pa.array(np.asarray(labels, dtype=np.int64))
        named = zip(paths.names, paths.sizes, strict=True) if isinstance(paths, RowPaths) else ()
        own = {name: getattr(self, name) for name in _Head.model_fields if name != "containers"}
        head = _Head(**own, containers=tuple(named))
        table = pa.table(columns, metadata={_HEAD: head.model_dump_json()})
        with (
            told_when_full(path.parent, table.nbytes),
            replacing(path) as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table)

    @classmethod
    def read(cls, path: Path) -> PlannedShard | None:
        """The plan in a file; None when there is none.

        Raises:
            StepError: It is damaged.
        """
        import pyarrow as pa

        content = read_bytes(path)
        if content is None:
            return None
        try:
            table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
            head = _Head.model_validate_json(table.schema.metadata[_HEAD])
            return cls(
                **head.model_dump(exclude={"containers"}),
                listed=_samples(table, head),
                indices=_numbers(table, "label") if "label" in table.column_names else (),
            )
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise StepError(f"The plan {path} is damaged: {error}", "Pack again.") from error


def _columns(samples: Listed) -> dict[str, Any]:
    """The columns of samples as Arrow arrays, by name."""
    import pyarrow as pa

    paths, versions, places = samples.paths, samples.versions, samples.places
    columns: dict[str, Any] = {"size": pa.array(narrow(np.asarray(samples.sizes, np.int64)))}
    if isinstance(paths, RowPaths):
        columns["row"] = pa.array(paths.rows)
    else:
        columns["path"] = Texts.of(paths).array
    if isinstance(versions, Times):
        columns["time_ns"] = pa.array(np.asarray(versions.times_ns, dtype=np.int64))
    elif isinstance(versions, Coded):
        few = versions.tight()
        texts = pa.array(few.values, pa.string())
        columns["version"] = pa.DictionaryArray.from_arrays(few.codes, texts)
    else:
        columns["version"] = Texts.of(versions).array
    if isinstance(places, PlacesInContainers):
        columns |= {f"{_PLACE}{n}": pa.array(column) for n, column in enumerate(places.columns)}
    return columns


def _samples(table: Any, head: _Head) -> Listed:
    import pyarrow as pa

    names = table.column_names
    paths: Sequence[str]
    if "row" in names:
        told, sizes = zip(*head.containers, strict=True)
        paths = RowPaths(told, sizes, table.column("row").to_numpy())
    else:
        paths = Texts(pa.concat_arrays(table.column("path").chunks))
    versions: Sequence[str]
    if "time_ns" in names:
        versions = Times(_numbers(table, "time_ns"))
    else:
        versions = Coded.of_arrow(table.column("version").combine_chunks())
    places: Sequence[tuple[int, ...]] = ()
    if found := [name for name in names if name.startswith(_PLACE)]:
        places = PlacesInContainers([table.column(name).to_numpy() for name in found])
    return Listed(paths, _numbers(table, "size"), versions, places=places)


def _numbers(table: Any, name: str) -> array[int]:
    return numbers(table.column(name).to_numpy())
