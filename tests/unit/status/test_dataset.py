"""The pages of datasets and suites: what the ledger, manifests and journals say of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from headrace.errors import UnknownNameError, UserError
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder
from headrace.files.manifest import Manifest, Quarantined
from headrace.files.manifest_file import read_manifest, write_manifest
from headrace.ledger.ledger import open_ledger
from headrace.runs.results import write_report
from headrace.runs.runs import Run
from headrace.states import LeaseState, StepState
from headrace.status.dataset import dataset_page, datasets_page
from headrace.status.suite import suite_page, trials_page
from headrace.suites import suite_report
from headrace.suites.records import RunningTrial, SuiteSummary
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.shards import write_dataset, write_identified
from support.suite_journal import added, ended, failed, journal, make_suite, started


def images(folder: Path, first: int = 0) -> Manifest:
    """Thirty pictures of three classes."""
    fields = {
        "image": np.arange(first, first + 30 * 64).reshape(30, 8, 8).astype(np.uint8),
        "label": np.arange(30) % 3,
    }
    return write_dataset(
        folder, fields, splits={"train": 20, "val": 10}, shard_samples=8, classes=("a", "b", "c")
    )


def packed(location: Path | str, manifest: Manifest, **outputs: Any) -> Run:
    """A run that has packed a dataset."""
    run = make_run()
    told = {
        "dataset": str(location),
        "fingerprint": manifest.fingerprint,
        "num_samples": manifest.num_samples,
        "num_shards": len(manifest.shards),
        "num_bytes": manifest.num_bytes,
        "num_quarantined": len(manifest.quarantined),
        "reused": False,
        **outputs,
    }
    attempt_row_of(
        run, "pack", lease_on_disk(run), state=StepState.SUCCEEDED, finished_at=5.0, outputs=told
    )
    return run


def staged(run: Run, fingerprint: str) -> str:
    """The lease on a node of which a run has staged a dataset."""
    lease_id = lease_on_disk(run, "gpu")
    node = {"node": "node-7", "tier": "memory", "num_bytes": 99, "folder": "/dev/shm/x"}
    outputs = {"fingerprint": fingerprint, "nodes": [node]}
    attempt_row_of(run, "stage", lease_id, state=StepState.SUCCEEDED, outputs=outputs)
    return lease_id


def test_a_dataset_is_one_row_whoever_packed_it_or_found_it(tmp_path):
    folder = tmp_path / "digits-0123456789ab"
    manifest = images(folder)
    maker = packed(folder, manifest)
    user = packed(folder, manifest, reused=True)
    lease_id = staged(user, manifest.fingerprint)
    attempt_row_of(user, "train", lease_id)
    (row,) = datasets_page().rows
    assert (row.name, row.fingerprint, row.location) == (
        "digits",
        manifest.fingerprint,
        str(folder),
    )
    assert (row.num_samples, row.num_shards, row.num_bytes) == (30, 5, manifest.num_bytes)
    assert (row.made_by, row.made_at, row.num_runs) == (maker.run_id, 5.0, 1)
    assert (row.is_remote, row.is_there) == (False, True)
    (copy,) = row.staged
    assert [*dict(copy).values()] == ["node-7", "memory", 99, lease_id]
    open_ledger().set_lease_state(lease_id, LeaseState.CLOSED, ended_at=9.0)
    assert datasets_page().rows[0].staged == ()


def test_one_that_was_given_or_is_gone_is_listed_with_what_is_known(tmp_path):
    manifest = images(tmp_path / "given")
    packed(tmp_path / "elsewhere", manifest, reused=True)
    packed("s3://bucket/scans-0123456789ab", write_other(tmp_path))
    far, gone = datasets_page().rows
    assert (far.name, far.is_remote, far.is_there) == ("scans", True, None)
    assert (gone.name, gone.is_there, gone.made_by, gone.made_at) == ("elsewhere", False, "", None)
    assert "does not exist" in dataset_page("elsewhere").damage


def write_other(tmp_path: Path) -> Manifest:
    return images(tmp_path / "other", first=1)


def test_a_dataset_tells_what_its_manifest_says_and_who_trained_on_it(tmp_path):
    manifest = images(tmp_path / "small")
    bad = tuple(Quarantined(path=f"<{number}>.png", reason="cut") for number in range(300))
    counts = {"train": {"a": 7, "b": 7, "c": 6}, "val": {"a": 3, "b": 3, "c": 4}}
    more = {"quarantined": bad, "class_counts": counts, "provenance": {"source": "/raw"}}
    write_manifest(tmp_path / "small", manifest.model_copy(update=more))
    run = packed(tmp_path / "small", manifest)
    attempt_row_of(run, "train", f"{run.run_id}-cpu-1")
    page = dataset_page("small")
    assert page.manifest == dataset_page(manifest.fingerprint).manifest
    assert [info.name for info in page.manifest.fields] == ["image", "label"]
    assert (page.manifest.shards, len(page.manifest.quarantined)) == ((), 200)
    assert page.manifest.class_counts == counts
    assert [(it.name, it.num_samples, it.num_shards) for it in page.splits] == [
        ("train", 20, 3), ("val", 10, 2),
    ]  # fmt: skip
    assert [row.run_id for row in page.runs] == [run.run_id]
    assert (page.damage, page.num_missing) == ("", 0)
    (tmp_path / "small" / manifest.shards[0].file).unlink()
    assert dataset_page("small").missing == (manifest.shards[0].file,)


def test_one_to_which_samples_were_added_names_what_lies_there_now(tmp_path):
    folder = tmp_path / "small"
    old = images(folder)
    packed(folder, old)
    new = write_identified(folder, read_manifest(folder).model_copy(update={"classes": ("x",)}))
    packed(folder, new, num_samples=31)
    packed(tmp_path / "small2", images(tmp_path / "small2", first=1))
    assert new.fingerprint in dataset_page(old.fingerprint).damage
    page = dataset_page("small")
    assert page.fingerprint == new.fingerprint
    assert [(it.fingerprint, it.num_samples) for it in page.others] == [(old.fingerprint, 30)]


@pytest.mark.parametrize("name", ["", "smal", "..", "/etc", "%", "../small", "small/manifest.json"])
def test_only_what_the_ledger_knows_is_found(tmp_path, name):
    packed(tmp_path / "small", images(tmp_path / "small"))
    with pytest.raises(UnknownNameError, match="No run of the ledger has a dataset"):
        dataset_page(name)


def test_a_run_folder_or_manifest_that_cannot_be_read_costs_the_page_its_manifest(tmp_path):
    run = packed(tmp_path / "small", images(tmp_path / "small"))
    run.folder.site.write_text("{")
    assert "does not hold a Site" in dataset_page("small").damage
    run.folder.site.unlink()
    (tmp_path / "small" / "manifest.json").write_text("{")
    assert "damaged" in dataset_page("small").damage
    assert dataset_page("small").num_samples == 30


@pytest.fixture
def suite() -> RunFolder:
    """Three trials: one has ended well, one has failed, one waits."""
    run = make_suite(overrides=("trainer.monitor=val_loss",)).folder
    rates = {1: 0.1, 2: 0.2, 3: math.inf}
    journal(run, *(added(number, model__lr=rate, seed=0) for number, rate in rates.items()))
    journal(run, started(1), started(2), ended(1, 0.5), failed(2))
    return run


def test_trials_by_columns(suite: RunFolder):
    told = trials_page(suite.run_id)
    columns = told.columns
    assert (told.is_part, told.version) == (False, suite.journal.stat().st_size)
    assert columns.number == (1, 2, 3)
    assert columns.state == ("succeeded", "failed", "queued")
    assert columns.objective == (0.5, None, None)
    assert columns.why == ("", "it broke", "")
    assert columns.values == {"model.lr": (0.1, 0.2, "inf"), "seed": (0, 0, 0)}
    assert columns.metrics == {"val_loss": (0.5, None, None)}
    assert columns.node == ("node-a", "node-a", "")


def test_only_trials_that_have_changed_are_sent_again(suite: RunFolder):
    before = trials_page(suite.run_id).version
    nothing = trials_page(suite.run_id, before)
    assert (nothing.is_part, nothing.version, nothing.columns.number) == (True, before, ())
    journal(suite, started(3), ended(3, 0.25, pruned=True), added(4, model__lr=1.0))
    part = trials_page(suite.run_id, before)
    assert (part.is_part, part.columns.number) == (True, (3, 4))
    assert part.columns.state == ("pruned", "queued")
    assert trials_page(suite.run_id, part.version + 1).is_part is False


def test_how_a_suite_stands(suite: RunFolder):
    running = RunningTrial(
        number=3, name="lr0.3", attempt=1, node="node-b", started_at=1.0, done=0.5
    )
    summary = SuiteSummary(
        total=3, counts={"running": 1}, paused=True, running=(running,), eta_s=60.0, eta_error_s=5.0
    )
    write_record(suite.summary, summary)
    told = suite_page(suite.run_id, can_act=False)
    assert (told.paused, told.eta_s, told.eta_error_s, told.report) == (True, 60.0, 5.0, "")
    assert (told.best, told.best_value) == (1, 0.5)
    assert [(each.number, each.done) for each in told.running] == [(3, 0.5)]
    assert [each.metric for each in told.objectives] == ["val_loss"]
    assert (told.run_id, told.kind, told.can_act) == (suite.run_id, "suite", False)


def test_a_run_without_trials_is_refused():
    with pytest.raises(UserError, match="is not a suite"):
        trials_page(make_run().run_id)


def test_keys_that_are_sampled_by_orders_of_magnitude_are_drawn_so(monkeypatch: pytest.MonkeyPatch):
    """Also where one order has them all; on the page, and in the figures of the report."""
    space = {"model.lr": "tag(log, interval(1e-3, 1e-2))", "model.hidden": "interval(1, 9)"}
    search = f"suite.search={json.dumps({'space': space, 'trials': 3})}"
    run = make_suite(overrides=(search, "trainer.monitor=val_loss"))
    assert suite_page(run.run_id, can_act=False).log_keys == ("model.lr",)
    assert (
        suite_page(make_suite(overrides=("suite.points=[{}]",)).run_id, can_act=False).log_keys
        == ()
    )
    journal(run.folder, *(added(at, model__lr=lr, model__hidden=at) for at, lr in LRS.items()))
    journal(run.folder, *(each for at in LRS for each in (started(at), ended(at, 0.5 / at))))
    scales = {}

    def seen(_: object, study: optuna.Study, **__: object) -> bytes:
        kinds = study.trials[0].distributions.items()
        scales.update({key: kind.log for key, kind in kinds})
        return b""

    monkeypatch.setattr(suite_report, "_drawn", seen)
    assert write_report(open_ledger().run(run.run_id)).exists()
    assert scales == {"model.lr": True, "model.hidden": False}


LRS = {1: 1e-3, 2: 10**-2.5, 3: 1e-2}


def test_the_best_trial_is_found_behind_any_number_that_were_pruned(suite: RunFolder):
    """Pruned ones have the values at which they were ended, which may all be better."""
    many = range(4, 1504)
    journal(suite, *(added(number) for number in many))
    journal(suite, *(ended(number, 0.001, pruned=True) for number in many))
    assert suite_page(suite.run_id, can_act=False).best == 1
