"""The page of one dataset: what its manifest says, and what runs of the ledger did with it."""

from __future__ import annotations

import time
from pathlib import Path

from headrace.errors import HeadraceError, ManifestError
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.files.manifest import Manifest
from headrace.ledger.ledger import open_ledger
from headrace.recipe.site import Site, StoreOptions
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.shards.inspection import DatasetSummary, summarise
from headrace.views.datasets import DatasetRow, Known, find_dataset, others_at, row_of
from headrace.views.runs import RunRow, run_rows

MOST_QUARANTINED = 200
MOST_RUNS = 50
_MOST_MISSING = 20


class SplitRow(Record):
    """A split."""

    name: str
    num_samples: int
    num_shards: int
    num_bytes: int
    folds: tuple[int, ...]
    """Samples in each of its folds."""


class OtherContent(Record):
    """What lay at the same place before, or lies there now."""

    fingerprint: str
    num_samples: int | None


class DatasetPage(DatasetRow):
    """All that the page of a dataset shows."""

    now: float
    damage: str
    """Why the manifest is not shown; else empty."""
    manifest: Manifest | None
    """The manifest, without its shards, and with the first samples that are quarantined."""
    splits: tuple[SplitRow, ...]
    missing: tuple[str, ...]
    """The first shards that are not there with their size."""
    num_missing: int
    others: tuple[OtherContent, ...]
    """What else lay at this place, the newest first, as where samples were added."""
    runs: tuple[RunRow, ...]
    """The newest runs that trained on it."""


def dataset_page(name: str, sites: Sites = None) -> DatasetPage:
    """A dataset, by its fingerprint or name.

    Raises:
        UnknownNameError: The ledger knows none of that name; a path is none.
    """
    known, summary, damage = find_dataset(name, sites), None, ""
    try:
        summary = summary_of(known)
    except (HeadraceError, OSError) as error:
        damage = str(error)
    trained = [packing.run_id for packing in known.packings if packing.is_trained_on][:MOST_RUNS]
    missing = summary.missing if summary else ()
    return DatasetPage(
        **dict(row_of(known)),
        now=time.time(),
        damage=damage,
        manifest=_in_short(summary.manifest) if summary else None,
        splits=_splits(summary.manifest) if summary else (),
        missing=missing[:_MOST_MISSING],
        num_missing=len(missing),
        others=tuple(
            OtherContent(
                fingerprint=other.fingerprint, num_samples=other.outputs.get("num_samples")
            )
            for other in others_at(known, sites)
        ),
        runs=run_rows(open_ledger().runs(MOST_RUNS, run_ids=trained) if trained else ()),
    )


def summary_of(known: Known) -> DatasetSummary:
    """What lies where a dataset was last found.

    Raises:
        UnknownNameError: Nothing does, as this machine sees it.
        ManifestError: It has another content, or its manifest is damaged.
        StoreError: The object store does not answer.
    """
    found = summarise(known.location, _store_options(known))
    there = found.manifest.fingerprint if isinstance(found, DatasetSummary) else None
    if not isinstance(found, DatasetSummary) or there != known.fingerprint:
        raise ManifestError(
            f"At {known.location} lies another content by now, with the fingerprint {there}",
            "Samples were added there, or it was packed anew.",
        )
    return found


def _store_options(known: Known) -> StoreOptions | None:
    site = read_record(RunFolder(Path(known.packings[0].folder)).site, Site)
    return site.s3 if site else None


def _in_short(manifest: Manifest) -> Manifest:
    first = manifest.quarantined[:MOST_QUARANTINED]
    return manifest.model_copy(update={"shards": (), "quarantined": first})


def _splits(manifest: Manifest) -> tuple[SplitRow, ...]:
    return tuple(_split(manifest, name) for name in manifest.splits)


def _split(manifest: Manifest, name: str) -> SplitRow:
    shards = manifest.shards_of(name)
    return SplitRow(
        name=name,
        num_samples=manifest.splits[name],
        num_shards=len(shards),
        num_bytes=sum(shard.num_bytes for shard in shards),
        folds=manifest.folds.get(name, ()),
    )
