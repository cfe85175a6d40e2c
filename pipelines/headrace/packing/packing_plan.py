"""What packing will do: pure functions from samples, labels and recipe to frozen records.

Workers find the plan of a shard in a file of an Arrow table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray
from pyarrow import compute as pc
from pydantic import Field

from headrace.errors import StepError
from headrace.files.atomic import read_bytes, write_bytes
from headrace.files.machine import told_when_full
from headrace.files.manifest import ColumnNote, FieldInfo, Quarantined
from headrace.objects.protocol import StoredFile
from headrace.packing.division import (
    Division,
    SourceListing,
    compared,
    folds_of,
    shards_of,
    split_samples,
)
from headrace.packing.fields import FieldRule
from headrace.packing.sample_table import SampleTable
from headrace.packing.splits import ranks
from headrace.packing.statistics import every_of
from headrace.recipe.dataset import TRAIN, DatasetSpec, PackSpec
from headrace.record import Record
from headrace.shards.format import HEADER_BYTES, SHARD_FORMAT

LABEL = FieldInfo(name="label", dtype="int64", layout="fixed")
"""The field of class indices."""

_HEAD = b"shard"  # key of the metadata of a planned shard
_FIXED_BYTES = 8 + 8 + 8  # sample_id, checksum, offset of the source path
_HASHED_SAMPLES = 2**14  # samples that are hashed at once
_DATASET_KEYS = {
    "splits", "stratify", "split_seed", "folds", "fields", "format", "reader",
    "label_kind", "label_field",
}  # fmt: skip
_LATER_KEYS = {"missing", "encoding", "split_folders", "path_field", "query"}
_PACK_KEYS = set(PackSpec.model_fields) - {"append", "max_quarantined", "target"}
_NOT_HASHED: dict[str, Any] = {"fields": {"__all__": {"orientation"}}}
"""Images that may be turned are part of the code of a listing."""


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

    def write(self, path: Path, record: Path) -> None:
        """Write the plan to a file; remove the record of a shard that was packed by another plan.

        Raises:
            StorageFullError: The disk is full.
        """
        table = self.samples.compact().table
        table = table.replace_schema_metadata({_HEAD: self.model_dump_json()})
        content = pa.BufferOutputStream()
        with pa.ipc.new_file(content, table.schema) as writer:
            writer.write_table(table)
        plan = content.getvalue().to_pybytes()
        if read_bytes(path) != plan:
            record.unlink(missing_ok=True)
            with told_when_full(path.parent, len(plan)):
                write_bytes(path, plan)

    @classmethod
    def read(cls, path: Path) -> PlannedShard | None:
        """Return the plan in a file, if any; `StepError` if damaged or of an earlier release."""
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


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    """All that packing will write."""

    name: str
    pack_key: str
    """Equal key, equal shards."""
    fields: tuple[FieldInfo, ...]
    """Fields of a sample, `label` (if any) last."""
    classes: tuple[str, ...]
    splits: tuple[str, ...]
    shards: tuple[PlannedShard, ...]
    """Shards in the order of sample ids."""
    every: dict[str, int]
    """By field that has statistics: one in how many elements counts."""
    quarantined: tuple[Quarantined, ...] = ()
    """Samples that the listing left out."""
    notes: tuple[str | ColumnNote, ...] = ()
    """How the samples were found, for people."""

    @property
    def num_samples(self) -> int:
        """Samples to pack."""
        return sum(shard.num_samples for shard in self.shards)


@dataclass(frozen=True, kw_only=True)
class FirstNumbers:
    """Where numbers begin, when samples are appended."""

    sample_id: int = 0
    shard: Mapping[str, int] = field(default_factory=dict)
    """Number of the first shard by split."""
    every: Mapping[str, int] = field(default_factory=dict)
    """One in how many elements counts for the statistics of each field, if that is fixed."""


def settings_key(dataset: DatasetSpec, pack: PackSpec, code: str = "") -> str:
    """Hash of the settings that decide what shards hold, without the samples; 32 hex digits.

    The dataset's name and the place of the source do not count, nor how many samples may be
    quarantined. `code` is the hash of the user's code that makes the values.
    """
    config = dataset.model_dump_json(include=_DATASET_KEYS | _given(dataset))
    later = {} if pack.max_samples else {"max_samples": True}
    packing = pack.model_dump_json(include=_PACK_KEYS, exclude=_NOT_HASHED | later)
    return xxhash.xxh3_128_hexdigest(f"{SHARD_FORMAT}\n{config}\n{packing}\n{code}".encode())


def division_key(dataset: DatasetSpec) -> str:
    """Hash of the settings that decide how samples are divided; 32 hex digits."""
    config = dataset.model_dump_json(include={"splits", "stratify", "split_seed", "folds"})
    return xxhash.xxh3_128_hexdigest(config.encode())


def sources_key(
    dataset: DatasetSpec, pack: PackSpec, code: str, containers: Sequence[StoredFile]
) -> str:
    """Hash of all that decides what is packed from containers, without listing what they hold."""
    later = set() if pack.max_samples else {"max_samples"}
    packing = pack.model_dump_json(exclude={"max_quarantined", "target", *later})
    files = [f"{file.path!r} {file.num_bytes} {file.version!r}" for file in containers]
    config = dataset.model_dump_json(exclude=_LATER_KEYS - _given(dataset))
    parts = (str(SHARD_FORMAT), "turned", config, packing, code, *files)
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


def _given(dataset: DatasetSpec) -> set[str]:
    """The later keys that a recipe uses; without them, keys of datasets are as before."""
    standard = DatasetSpec.model_fields
    return {key for key in _LATER_KEYS if getattr(dataset, key) != standard[key].default}


def pack_key(dataset: DatasetSpec, pack: PackSpec, listing: SourceListing) -> str:
    """Hash of everything that decides what the shards hold; 32 hexadecimal digits."""
    state = xxhash.xxh3_128(settings_key(dataset, pack, listing.code).encode())
    for name in listing.classes:
        state.update(f"{name!r}\n".encode())
    samples = listing.samples
    parts = [samples[at : at + _HASHED_SAMPLES] for at in range(0, len(samples), _HASHED_SAMPLES)]
    for part in parts:
        _hash_texts(state, part.paths)
    for part in parts:
        _hash_texts(state, part.column("version"))
    for column in (samples.numbers("bytes"), listing.class_indices):
        state.update(len(column).to_bytes(8, "little"))
        state.update(column.astype("<i8").tobytes())
    for role in ("group", "split"):
        _hash_names(state, [part.column(role) for part in parts])
    state.update(samples.index_hash.encode())
    return state.hexdigest()


def make_plan(
    dataset: DatasetSpec,
    pack: PackSpec,
    listing: SourceListing,
    rules: Sequence[FieldRule],
    first: FirstNumbers | None = None,
    key: str | None = None,
) -> PackPlan:
    """Lay out splits and shards; if samples are appended, only those of new ones, from `first` on.

    Raises:
        RecipeError: A split or fold would be empty.
        DataError: Samples are appended, but earlier ones cannot stay in their splits.
    """
    order = ranks(listing.samples.iter_paths(), dataset.split_seed)
    splits = split_samples(dataset, listing, order)
    division: Division = [
        (split, *fold)
        for split, indices in splits.items()
        for fold in folds_of(dataset, listing, split, indices, order)
    ]
    division, notes = compared(listing, division)
    first = first or FirstNumbers()
    counted = {TRAIN: splits[TRAIN]} if len(splits.get(TRAIN, ())) else splits
    every = _every(pack, rules, sum(map(len, counted.values())), first.every)
    sizes = _sizes(listing.samples, rules, bool(listing.classes))
    label = listing.samples.column("label")
    samples = listing.samples.with_columns(
        **dict.fromkeys(("label", "group", "split", "earlier")),
        class_index=None if label is None else label.indices,
    )
    shards: list[PlannedShard] = []
    next_id, numbers = first.sample_id, Counter(first.shard)
    for split, fold, part in division:
        for piece in shards_of(part, sizes, order if listing.sequential else None, pack):
            shard = PlannedShard(
                file=f"shards/{split}-{numbers[split]:05d}.h5",
                split=split,
                fold=fold,
                first_sample_id=next_id,
                num_bytes=HEADER_BYTES + int(sizes[piece].sum()),
                every=every if split in counted else {},
                listed=samples,
                places=piece.astype(np.min_scalar_type(len(samples))),
            )
            shards.append(shard)
            next_id += len(piece)
            numbers[split] += 1
    fields = tuple(rule.info for rule in rules)
    return PackPlan(
        name=dataset.name,
        pack_key=key or pack_key(dataset, pack, listing),
        fields=(*fields, LABEL) if listing.classes else fields,
        classes=listing.classes,
        splits=tuple(splits),
        shards=tuple(shards),
        every=every,
        quarantined=listing.quarantined,
        notes=(*listing.notes, *notes),
    )


def _every(
    pack: PackSpec, rules: Sequence[FieldRule], num_samples: int, known: Mapping[str, int]
) -> dict[str, int]:
    if pack.statistics == "none":
        return {}
    fixed = [rule.info for rule in rules if rule.info.layout == "fixed"]
    infos = [info for info in fixed if np.dtype(info.dtype).kind != "c"]  # which have no order
    if pack.statistics == "all":
        return {info.name: 1 for info in infos}
    return {info.name: known.get(info.name) or every_of(info, num_samples) for info in infos}


def _hash_texts(state: xxhash.xxh3_128, texts: Any) -> None:
    """Add an Arrow array of texts or times to a hash; no others give the same bytes."""
    if pa.types.is_integer(texts.type):
        state.update(np.asarray(texts, dtype="<i8").tobytes())
        return
    texts = texts.cast(pa.large_string())
    state.update(np.asarray(pc.utf8_length(texts), dtype="<i8").tobytes())
    state.update("".join(texts.to_numpy(zero_copy_only=False)).encode())


def _hash_names(state: xxhash.xxh3_128, parts: Sequence[Any]) -> None:
    """Add `repr(tuple(names))` of the names in Arrow arrays, which may be None."""
    state.update(b"(")
    named = [part for part in parts if part is not None]
    for number, part in enumerate(named):
        names = ", ".join(map(repr, part.to_numpy(zero_copy_only=False).tolist()))
        state.update(f"{', ' if number else ''}{names}".encode())
    state.update(b",)" if sum(map(len, named)) == 1 else b")")


def _sizes(samples: SampleTable, rules: Sequence[FieldRule], labelled: bool) -> NDArray[np.int64]:
    """Bytes of each sample in a shard, estimated, `(num_samples,) int64`."""
    fixed = _FIXED_BYTES + (8 if labelled else 0) + sum(rule.fixed_bytes for rule in rules)
    paths = samples.path_lengths(in_bytes=False).astype(np.int64)
    if all(rule.info.layout == "fixed" for rule in rules):
        return paths + fixed
    listed = samples.numbers("bytes")
    example = sum(rule.example_bytes for rule in rules if rule.info.layout == "ragged")
    growth = max((rule.growth for rule in rules), default=1.0)
    values = np.where(listed > 0, (listed * growth).astype(np.int64), example)
    return paths + fixed + values


def limited(plan: PackPlan, max_samples: int) -> PackPlan:
    """Return a plan with one shard of at most so many samples for each split and fold.

    They are the first in the order of packing, but one of each class comes before others, the last
    class first.
    """
    shards, sample_id = list[PlannedShard](), 0
    for _, group in groupby(plan.shards, lambda shard: (shard.split, shard.fold)):
        first, *others = group
        places = np.concatenate([first.places, *(shard.places for shard in others)])
        classes = first.listed.column("class_index")
        if classes is not None:
            of_each = np.unique(np.asarray(classes)[places], return_index=True)[1][::-1]
            places = np.concatenate([places[of_each], np.delete(places, of_each)])
        update = {"places": places[:max_samples], "first_sample_id": sample_id}
        shards.append(first.model_copy(update=update))
        sample_id += min(len(places), max_samples)
    return replace(plan, shards=tuple(shards))
