"""What a run gave and left behind, and how that differs from the run that nobody disturbed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from headrace.clusters.lease_folders import leftovers
from headrace.files.atomic import UNFINISHED, is_there
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.files.manifest_file import read_manifest
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import AttemptRecord, RunRecord
from headrace.record import Record
from headrace.states import StepState
from headrace.status.lease import site_leases
from headrace.steps import mailbox

_KEPT = ("datasets", "tier", "runs")
"""Folders of a home in which a disturbed run leaves the same files as any other."""
_STAGED = "tier/"
"""What is staged may be removed once nobody uses it."""
_PREPARED_STEP = re.compile(r"\.[0-9a-f]{32}")
"""Names of folders that the mailbox fills before they have their final name."""


class Result(Record):
    """What a run gave: the same for equal recipes, whatever happened on the way."""

    dataset: str
    """Fingerprint of the packed samples."""
    weights: str
    """Hash of the trained weights."""
    steps: int
    """Optimizer steps."""
    train_metrics: dict[str, float]
    """Last figures of the training."""
    test_metrics: dict[str, float]
    """Figures of the evaluation."""
    samples: tuple[int, int, int]
    """Samples of the test split: in the dataset, counted, counted different ones."""
    files: frozenset[str]
    """Files that are there, without those of leases."""


def result_of(home: Path, run: RunRecord) -> Result:
    """What a run that has succeeded gave."""
    from pyarrow import parquet

    pack, train, test = (run.outputs[step] for step in ("pack", "train", "evaluate"))
    manifest = read_manifest(Path(pack["dataset"]))
    counted = parquet.read_table(test["predictions"], columns=["sample_id"])["sample_id"].to_numpy()
    return Result(
        dataset=manifest.fingerprint,
        weights=train["weights_xxh3"],
        steps=train["steps"],
        train_metrics=train["metrics"],
        test_metrics=test["metrics"],
        samples=(manifest.splits["test"], test["num_samples"], len(np.unique(counted))),
        files=_files(home, run.run_id),
    )


def wrong(home: Path, run: RunRecord | None, reference: Result) -> Iterator[str]:
    """In which way the result of a run is not that of the reference."""
    if run is None:
        yield "the run is not in the ledger"
    elif run.state is not StepState.SUCCEEDED:
        yield f"the run is {run.state.value}"
    else:
        yield from differences(result_of(home, run), reference)


def differences(found: Result, reference: Result) -> Iterator[str]:
    """In which way two results differ; files that only the first one has are none of it."""
    for name in Result.model_fields:
        ours, theirs = getattr(found, name), getattr(reference, name)
        if name != "files" and ours != theirs:
            yield f"{name}: {ours}, not {theirs}"
    missing = sorted(reference.files - found.files)
    yield from (f"file {name} is missing" for name in missing if not name.startswith(_STAGED))


def left_over(
    home: Path, run: RunRecord, reference: Result, memory: Iterable[Path]
) -> Iterator[str]:
    """What the run left behind that the reference did not, processes apart.

    Args:
        home: Home of the run.
        run: The run.
        reference: What is there of the run that nobody disturbs.
        memory: Shared memory that the run had while it was going on.
    """
    extra = sorted(_files(home, run.run_id) - reference.files)
    yield from (f"file {name}" for name in extra)
    leases = SiteFolder(home).leases
    for path in leases.rglob(".*"):
        if UNFINISHED.fullmatch(path.name) or _PREPARED_STEP.fullmatch(path.name):
            yield f"temporary {path.relative_to(home)}"
    yield from (f"memory {path}" for path in memory if path.exists())
    yield from (f"open lease {view.lease_id}" for view in site_leases(SiteFolder(home)))
    yield from (f"lease {each.folder.lease_id}: {each.why}" for each in leftovers(SiteFolder(home)))
    yield from _disagreements(home, run.run_id)


def _files(home: Path, run_id: str) -> frozenset[str]:
    found = (path for folder in _KEPT for path in (home / folder).rglob("*") if path.is_file())
    return frozenset(str(path.relative_to(home)).replace(run_id, "RUN") for path in found)


def _disagreements(home: Path, run_id: str) -> Iterator[str]:
    """Where ledger and disk differ."""
    ledger = Ledger.open(f"sqlite:///{home / 'ledger.db'}")
    rows = {row.lease_id: row for row in ledger.leases(run_id=run_id)}
    for row in rows.values():
        if row.state.is_active:
            yield f"ledger: lease {row.lease_id} is {row.state.value}"
    for folder in (LeaseFolder(path) for path in SiteFolder(home).leases.iterdir()):
        if folder.lease_id not in rows or not is_there(folder.closed):
            yield f"disk: lease {folder.lease_id} is not closed, or not in the ledger"
    for attempt in ledger.attempts(run_id):
        yield from _disagreement(SiteFolder(home), attempt)


def _disagreement(site: SiteFolder, attempt: AttemptRecord) -> Iterator[str]:
    name = f"ledger: attempt {attempt.step}/{attempt.attempt} is {attempt.state.value}"
    if not attempt.state.is_final:
        yield name
    if attempt.number is None or attempt.state is not StepState.SUCCEEDED:
        return
    result = mailbox.outcome(site.lease(attempt.lease_id).step(attempt.number))
    if result is None or result.state is not StepState.SUCCEEDED:
        yield f"{name}, on disk it is {result and result.state.value}"
