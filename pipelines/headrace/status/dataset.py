"""Datasets: what was packed, its location, its copies on nodes, and what was trained on it."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, ManifestError, UnknownNameError, nearest
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.files.manifest import Manifest
from headrace.ledger.ledger import open_ledger
from headrace.ledger.many_runs import Packing
from headrace.objects.store import is_remote
from headrace.recipe.site import Site, StoreOptions
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
    damage: str
    """Why the manifest is not shown; empty if it is."""
    manifest: Manifest | None
    """The manifest without its shards, and with the first quarantined samples only."""
    splits: tuple[SplitRow, ...]
    missing: tuple[str, ...]
    """The first shards that are missing or of another size."""
    num_missing: int
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


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the ledger knows of a dataset."""

    fingerprint: str
    packings: Sequence[Packing]
    """All runs that packed it or found it packed, the newest first; at least one."""

    @property
    def outputs(self) -> Mapping[str, Any]:
        """Outputs of the newest packing."""
        return self.packings[0].outputs

    @property
    def location(self) -> str:
        """Last known folder or URL."""
        return str(self.outputs["dataset"])

    @property
    def name(self) -> str:
        """The dataset's name, by the folder that packing makes for it."""
        return _PACK_KEY.sub("", self.location.rstrip("/").rpartition("/")[2])

    @property
    def made(self) -> Packing | None:
        """The first packing that wrote it; None if unknown."""
        made = (each for each in self.packings if not each.outputs["reused"])
        return next(reversed([*made]), None)


def datasets_page(sites: Sites = None) -> DatasetsPage:
    """Return the datasets that runs of the ledger, of some sites or all, packed or were given."""
    packings, staged = _packings_of("", sites), _staged()
    rows = (_row(known, staged.get(known.fingerprint, ())) for known in _by_content(packings))
    is_whole = len(packings) < MOST_PACKINGS
    return DatasetsPage(now=time.time(), rows=tuple(rows), is_whole=is_whole)


def dataset_page(name: str, sites: Sites = None) -> DatasetPage:
    """Return a dataset, by its fingerprint or name.

    Raises:
        UnknownNameError: The ledger has no dataset of that name; paths are not accepted.
    """
    known, summary, damage = find_dataset(name, sites), None, ""
    try:
        summary = _summary(known)
    except (HeadraceError, OSError) as error:
        damage = str(error)
    trained = [packing.run_id for packing in known.packings if packing.is_trained_on][:MOST_RUNS]
    missing = summary.missing if summary else ()
    return DatasetPage(
        **dict(_row(known, _staged().get(known.fingerprint, ()))),
        now=time.time(),
        damage=damage,
        manifest=_in_short(summary.manifest) if summary else None,
        splits=tuple(_split(summary.manifest, each) for each in summary.manifest.splits)
        if summary
        else (),
        missing=missing[:_MOST_MISSING],
        num_missing=len(missing),
        others=tuple(
            OtherContent(
                fingerprint=other.fingerprint, num_samples=other.outputs.get("num_samples")
            )
            for other in others_at(known, sites)
        ),
        runs=run_views(open_ledger().runs(MOST_RUNS, run_ids=trained) if trained else ()),
    )


def find_dataset(name: str, sites: Sites = None) -> Known:
    """Return a dataset of the ledger by its fingerprint, or the newest dataset of a name.

    Raises:
        UnknownNameError: No run packed it or was given it; a path is not a name.
    """
    for known in _by_content(_packings_of(name, sites)):
        if name in (known.fingerprint, known.name):
            return known
    names = {known.name for known in _by_content(_packings_of("", sites))}
    raise UnknownNameError(f"No run of the ledger has a dataset '{name}'", nearest(name, names))


def others_at(known: Known, sites: Sites = None) -> Iterator[Known]:
    """Yield datasets with another content at the same location, the newest first."""
    for other in _by_content(_packings_of(known.location, sites)):
        if other.location == known.location and other.fingerprint != known.fingerprint:
            yield other


def _summary(known: Known) -> DatasetSummary:
    """Return what is at a dataset's last known location.

    Raises:
        UnknownNameError: There is nothing, on this machine.
        ManifestError: It has another content, or its manifest is damaged.
        StoreError: The object store does not answer.
    """
    found = summarise(known.location, _store_options(known))
    there = found.manifest.fingerprint if isinstance(found, DatasetSummary) else None
    if not isinstance(found, DatasetSummary) or there != known.fingerprint:
        raise ManifestError(
            f"{known.location} now holds another content, with the fingerprint {there}",
            "Samples were added there, or it was packed again.",
        )
    return found


def _store_options(known: Known) -> StoreOptions | None:
    site = read_record(RunFolder(Path(known.packings[0].folder)).site, Site)
    return site.s3 if site else None


def _in_short(manifest: Manifest) -> Manifest:
    first = manifest.quarantined[:MOST_QUARANTINED]
    return manifest.model_copy(update={"shards": (), "quarantined": first})


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


def _by_content(packings: Sequence[Packing]) -> Iterator[Known]:
    found: defaultdict[str, list[Packing]] = defaultdict(list)
    for packing in packings:
        if {"dataset", "fingerprint", "reused"} <= packing.outputs.keys():
            found[str(packing.outputs["fingerprint"])].append(packing)
    for fingerprint, of_it in found.items():
        yield Known(fingerprint=fingerprint, packings=of_it)


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


def _row(known: Known, staged: Sequence[StagedOn]) -> DatasetView:
    made, location, outputs = known.made, known.location, known.outputs
    far = is_remote(location)
    return DatasetView(
        fingerprint=known.fingerprint,
        name=known.name,
        location=location,
        is_remote=far,
        is_there=None if far else Path(location).is_dir(),
        num_samples=outputs.get("num_samples"),
        num_bytes=outputs.get("num_bytes"),
        num_shards=outputs.get("num_shards"),
        num_quarantined=outputs.get("num_quarantined"),
        made_at=made.ended_at if made else None,
        made_by=made.run_id if made else "",
        num_runs=sum(packing.is_trained_on for packing in known.packings),
        staged=tuple(staged),
    )
