"""Datasets: what was packed, its location, its copies on nodes, and what was trained on it."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, SkipValidation

from headrace.errors import HeadraceError, ManifestError, UnknownNameError, nearest
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.files.manifest import Manifest
from headrace.ledger.database import grouped
from headrace.ledger.ledger import open_ledger
from headrace.ledger.many_runs import Packing
from headrace.objects.store import is_remote
from headrace.recipe.site import Site
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.shards.inspection import DatasetSummary, summarise
from headrace.states import StepState
from headrace.status.run import RunView, run_views

MOST_PACKINGS = 10_000
"""Newest packings that the list is made of."""

MOST_QUARANTINED = 200
MOST_RUNS = 50
_MOST_MISSING = 20
_PACK_KEY = re.compile("-[0-9a-f]{12}$")


class StagedOn(Record):
    """A copy on a node of an open lease."""

    node: str
    tier: str
    num_bytes: int
    lease_id: str


class DatasetView(Record):
    """A dataset by its content; null: unknown."""

    fingerprint: str
    name: str
    """Name by the folder that packing makes for it."""
    location: str
    """Last known folder or URL."""
    is_remote: bool
    """Whether it is in an object store."""
    is_there: bool | None
    """Whether the folder exists on this machine; null in an object store."""
    num_samples: int | None
    num_bytes: int | None
    num_shards: int | None
    num_quarantined: int | None
    made_at: float | None
    """When it was packed; null if no run of the ledger packed it."""
    made_by: str
    """The run that packed it; empty if no run of the ledger did."""
    num_runs: int
    """Runs that trained on it, a suite as one."""
    staged: tuple[StagedOn, ...]
    """Copies on nodes of open leases, as reported by steps."""
    packings: tuple[SkipValidation[Packing], ...] = Field(exclude=True)
    """All runs that packed it or found it packed, the newest first; at least one."""

    @classmethod
    def of(cls, packings: Sequence[Packing], staged: Sequence[StagedOn] = ()) -> DatasetView:
        """Return a dataset by all its packings in the ledger."""
        outputs = packings[0].outputs
        location = str(outputs["dataset"])
        made = next((each for each in reversed(packings) if not each.outputs["reused"]), None)
        counts = ("num_samples", "num_bytes", "num_shards", "num_quarantined")
        return cls(
            fingerprint=str(outputs["fingerprint"]),
            name=_PACK_KEY.sub("", location.rstrip("/").rpartition("/")[2]),
            location=location,
            is_remote=is_remote(location),
            is_there=None if is_remote(location) else Path(location).is_dir(),
            **{name: outputs.get(name) for name in counts},
            made_at=made.ended_at if made else None,
            made_by=made.run_id if made else "",
            num_runs=sum(packing.is_trained_on for packing in packings),
            staged=tuple(staged),
            packings=tuple(packings),
        )


class SplitRow(Record):
    """A split."""

    name: str
    num_samples: int
    num_shards: int
    num_bytes: int
    folds: tuple[int, ...]
    """Samples in each of its folds."""


class OtherContent(Record):
    """What was at the same location before, or is there now."""

    fingerprint: str
    num_samples: int | None


class DatasetPage(DatasetView):
    """All data of a dataset's page."""

    now: float
    damage: str = ""
    """Why the manifest is not shown; empty if it is."""
    manifest: Manifest | None = None
    """The manifest without its shards, and with the first quarantined samples only."""
    splits: tuple[SplitRow, ...] = ()
    missing: tuple[str, ...] = ()
    """The first shards that are missing or of another size."""
    num_missing: int = 0
    others: tuple[OtherContent, ...]
    """Other contents of this location, the newest first, as after samples were added."""
    runs: tuple[RunView, ...]
    """The newest runs that trained on it."""


class DatasetsPage(Record):
    """Datasets, the last used first."""

    now: float
    rows: tuple[DatasetView, ...]
    is_whole: bool
    """Whether these are all of the ledger, not only its newest packings."""


def datasets_page(sites: Sites = None) -> DatasetsPage:
    """Return the datasets that runs of the ledger, of some sites or all, packed or were given."""
    packings = _packings_of("", sites)
    rows, is_whole = tuple(_by_content(packings, _staged())), len(packings) < MOST_PACKINGS
    return DatasetsPage(now=time.time(), rows=rows, is_whole=is_whole)


def dataset_page(name: str, sites: Sites = None) -> DatasetPage:
    """Return a dataset, by its fingerprint or name.

    Raises:
        UnknownNameError: The ledger has no dataset of that name; paths are not accepted.
    """
    known, found = find_dataset(name, sites), dict[str, Any]()
    try:
        found = _found(known)
    except (HeadraceError, OSError) as error:
        found["damage"] = str(error)
    trained = [packing.run_id for packing in known.packings if packing.is_trained_on][:MOST_RUNS]
    others = (
        OtherContent(fingerprint=other.fingerprint, num_samples=other.num_samples)
        for other in others_at(known, sites)
    )
    staged = _staged().get(known.fingerprint, ())
    return DatasetPage(
        **{**dict(known), "staged": tuple(staged)},
        **found,
        now=time.time(),
        others=tuple(others),
        runs=run_views(open_ledger().runs_of(trained)),
    )


def find_dataset(name: str, sites: Sites = None) -> DatasetView:
    """Return a dataset of the ledger by its fingerprint, or the newest dataset of a name.

    Raises:
        UnknownNameError: No run packed it or was given it; a path is not a name.
    """
    for known in _by_content(_packings_of(name, sites)):
        if name in (known.fingerprint, known.name):
            return known
    names = {known.name for known in _by_content(_packings_of("", sites))}
    raise UnknownNameError(f"No run of the ledger has a dataset '{name}'", nearest(name, names))


def others_at(known: DatasetView, sites: Sites = None) -> Iterator[DatasetView]:
    """Yield datasets with another content at the same location, the newest first."""
    for other in _by_content(_packings_of(known.location, sites)):
        if other.location == known.location and other.fingerprint != known.fingerprint:
            yield other


def _found(known: DatasetView) -> dict[str, Any]:
    """Return what is at a dataset's last known location: fields of `DatasetPage` by name.

    Raises:
        UnknownNameError: There is nothing, on this machine.
        ManifestError: It has another content, or its manifest is damaged.
        StoreError: The object store does not answer.
    """
    site = read_record(RunFolder(Path(known.packings[0].folder)).site, Site)
    found = summarise(known.location, site.s3 if site else None)
    there = found.manifest.fingerprint if isinstance(found, DatasetSummary) else None
    if not isinstance(found, DatasetSummary) or there != known.fingerprint:
        raise ManifestError(
            f"{known.location} now holds another content, with the fingerprint {there}",
            "Samples were added there, or it was packed again.",
        )
    manifest = found.manifest
    first = {"shards": (), "quarantined": manifest.quarantined[:MOST_QUARANTINED]}
    return {
        "manifest": manifest.model_copy(update=first),
        "splits": tuple(_split(manifest, each) for each in manifest.splits),
        "missing": found.missing[:_MOST_MISSING],
        "num_missing": len(found.missing),
    }


def _split(manifest: Manifest, name: str) -> SplitRow:
    shards = manifest.shards_of(name)
    return SplitRow(
        name=name,
        num_samples=manifest.splits[name],
        num_shards=len(shards),
        num_bytes=sum(shard.num_bytes for shard in shards),
        folds=manifest.folds.get(name, ()),
    )


def _packings_of(text: str, sites: Sites) -> tuple[Packing, ...]:
    return open_ledger().packings(MOST_PACKINGS, json.dumps(text)[1:-1], sites)


def _by_content(
    packings: Sequence[Packing], staged: Mapping[str, Sequence[StagedOn]] | None = None
) -> Iterator[DatasetView]:
    known = (row for row in packings if {"dataset", "fingerprint", "reused"} <= row.outputs.keys())
    found = grouped((str(packing.outputs["fingerprint"]), packing) for packing in known)
    for fingerprint, of_it in found.items():
        yield DatasetView.of(of_it, (staged or {}).get(fingerprint, ()))


def _staged() -> Mapping[str, Sequence[StagedOn]]:
    """Return copies on nodes of open leases, by fingerprint."""
    ledger, found = open_ledger(), defaultdict(list)
    leases = {lease.lease_id: lease.run_id for lease in ledger.active_leases()}
    attempts = ledger.attempts_of({*leases.values()}) if leases else {}
    for row in (each for rows in attempts.values() for each in rows):
        if row.kind == "stage" and row.state is StepState.SUCCEEDED and row.lease_id in leases:
            for node in row.outputs.get("nodes", ()):
                copy = {name: node[name] for name in ("node", "tier", "num_bytes")}
                found[row.outputs["fingerprint"]].append(StagedOn(**copy, lease_id=row.lease_id))
    return found
