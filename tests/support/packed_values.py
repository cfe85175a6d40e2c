"""What a source becomes when it is packed on this process: values, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.files.manifest import FieldInfo
from headrace.files.manifest_file import read_manifest
from headrace.packing.pack_step import pack
from headrace.shards.dataset import ShardedDataset
from headrace_bench.pack_headrace import pack_context
from support.packing import InProcess


@dataclass(frozen=True, kw_only=True)
class PackedValues:
    """A packed source."""

    columns: Mapping[str, list[Any]]
    """Values by field, in the order of the samples' paths; a class is its name."""
    types: Mapping[str, str]
    """By field: dtype of numbers and arrays, else the encoding."""
    quarantined: Mapping[str, str]
    """Reasons by path."""
    paths: tuple[str, ...]
    """The samples that were packed, sorted."""


def packed_values(
    source: Path, folder: Path, dataset: Mapping[str, Any] = {}, packing: Mapping[str, Any] = {}
) -> PackedValues:
    """Pack a source into a new folder, and read it back.

    Raises:
        HeadraceError: The source is refused.
    """
    recipe = {
        "name": "odd",
        "dataset": {"name": "odd", "source": str(source), "splits": {"train": 1.0}, **dataset},
        "pack": {"max_quarantined": 1.0, **packing},
        "model": {"_target_": "torch.nn.Identity"},
        "evaluate": None,
    }
    site = {
        "name": "here",
        "folder": str(folder / "site"),
        "roles": {"cpu": {}},
        "tiers": [{"name": "disk", "folder": str(folder / "cache")}],
    }
    context = pack_context(folder / "lease" / "steps" / "000001", recipe, site, "r")
    return _read(Path(pack(context, InProcess())["dataset"]))


def _read(folder: Path) -> PackedValues:
    manifest = read_manifest(folder)
    found: dict[str, dict[str, Any]] = {}
    for split in manifest.splits:
        dataset = ShardedDataset(folder, split)
        places = np.arange(len(dataset), dtype=np.int64)
        columns = {info.name: _values(dataset, info, places) for info in manifest.fields}
        if manifest.classes and "label" in columns:
            columns["label"] = [manifest.classes[code] for code in columns["label"]]
        for at, path in enumerate(dataset.sources(places)):
            found[path] = {name: values[at] for name, values in columns.items()}
    paths = tuple(sorted(found))
    return PackedValues(
        columns={info.name: [found[path][info.name] for path in paths] for info in manifest.fields},
        types={
            info.name: info.dtype if info.encoding == "raw" else info.encoding or ""
            for info in manifest.fields
        },
        quarantined={each.path: each.reason for each in manifest.quarantined},
        paths=paths,
    )


def _values(dataset: ShardedDataset, info: FieldInfo, places: Any) -> list[Any]:
    if info.layout == "fixed":
        rows = dataset.gather(info.name, places)
        return list(rows.tolist() if rows.ndim == 1 else rows)
    with dataset.holding(places):
        items = [item.tobytes() for item in dataset.items(info.name, places)]
        shapes = dataset.shapes(info.name, places).tolist() if info.ndim is not None else ()
    if info.ndim is not None:
        pairs = zip(items, shapes, strict=True)
        return [np.frombuffer(item, info.dtype).reshape(shape) for item, shape in pairs]
    if info.encoding in ("text", "json"):
        return [item.decode() for item in items]
    return items
