"""Parts of a suite over several sites: their record, their code, and the copy of the dataset."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest

from headrace.errors import (
    LedgerError,
    SiteError,
    StepError,
    StorageError,
    UnknownNameError,
    UserError,
)
from headrace.execution import check
from headrace.execution.resume import take_over_changed, take_over_run
from headrace.execution.step_attempts import _inputs
from headrace.files.layout import RunFolder, TrialFolder
from headrace.files.lines import append_line
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.run_filter import RunFilter
from headrace.multi_site import part, site_link
from headrace.multi_site.part import bring_dataset
from headrace.multi_site.parts import make_part, trial_at
from headrace.objects.store import read_manifest_at
from headrace.runs import parts
from headrace.runs.code_state import CodeSnapshot
from headrace.runs.names import named
from headrace.runs.origin import origin
from headrace.runs.planned_steps import steps_of
from headrace.runs.provenance import read_provenance
from headrace.runs.results import trials_of
from headrace.runs.runs import Run, open_run
from headrace.runs.suite_sites import asked_sites
from headrace.runs.suites import has_more_to_do
from headrace.states import DRIVER_ROLE, StepState
from headrace.steps.node_facts import software
from headrace.suites.event_log import Journal
from headrace.suites.points import expand, trial_recipe
from headrace.suites.records import Added, CommandsApplied, Control, Trial
from support.command_line import headrace
from support.factories import write_site
from support.ledger_rows import lease_row
from support.many_sites import DATASET, packed_suite, write_sites
from support.runs import attempt_row_of, ended_owner, lease_on_disk, make_run
from support.staged_datasets import make_dataset, same_bytes


@pytest.fixture(autouse=True)
def _home(headrace_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)


def record(run: Run) -> RunRecord:
    return open_ledger().run(run.run_id)


def test_a_part_is_made_once_from_the_suites_record(headrace_home: Path) -> None:
    suite = packed_suite(headrace_home)
    with ThreadPoolExecutor(8) as pool:
        made = {each.run_id for each in pool.map(lambda _: make_part(suite, "box"), range(8))}
    assert made == {parts.part_id(suite.run_id, "box")}
    part = make_part(suite, "box")
    assert part.folder.path == headrace_home / "box" / "runs" / part.run_id
    assert parts.suite_of_part(part.run_id) == suite.run_id
    assert [each.run_id for each in parts.part_records(suite.run_id)] == [part.run_id]
    assert part.recipe.dataset_path == str(headrace_home / "box" / "datasets" / DATASET)
    assert part.recipe.suite is not None
    assert not part.recipe.suite.grid
    assert part.recipe.objectives == suite.recipe.objectives
    assert [step.role for step in steps_of(part.recipe, "part")] == ["gpu", "gpu"]
    assert steps_of(suite.recipe, "suite")[-1].role == DRIVER_ROLE
    assert _inputs(part, steps_of(part.recipe, "part")[0]) == {"software": software()}
    assert read_provenance(part.folder) == read_provenance(suite.folder)
    first = next(iter(expand(suite.recipe)))
    recipe = trial_recipe(json.loads(part.folder.source.read_bytes()), first.values)
    assert (recipe.seed, recipe.dataset_path) == (1, part.recipe.dataset_path)


def test_lists_have_the_suite_in_place_of_its_parts(headrace_home: Path) -> None:
    suite = packed_suite(headrace_home)
    part = make_part(suite, "lab")
    assert [row.run_id for row in open_ledger().find_runs(RunFilter())] == [suite.run_id]
    (found,) = open_ledger().find_runs(RunFilter(kind=("part",)))
    assert found.run_id == part.run_id
    assert named("latest").name == suite.run_id
    with pytest.raises(UserError, match="part of a suite at site 'lab'") as error:
        take_over_run(part.run_id, "cli:here:1:1.0")
    assert suite.run_id in str(error.value)
    with pytest.raises(UserError, match="several sites"):
        take_over_changed(suite.run_id, "cli:here:1:1.0", ["train.nodes=1"], "")


def test_a_part_whose_row_is_lost_is_found_by_its_folder(headrace_home: Path) -> None:
    suite = packed_suite(headrace_home)
    part = make_part(suite, "box")
    (part.folder.path / "kept").touch()
    ledger = open_ledger()
    with ledger._database.write() as session:
        session.delete(session.get(RunRecord, part.run_id))
    assert make_part(suite, "box").run_id == part.run_id
    assert (part.folder.path / "kept").exists()
    half = RunFolder(headrace_home / "lab" / "runs" / parts.part_id(suite.run_id, "lab"))
    half.code.mkdir(parents=True)  # its maker was killed
    assert open_run(make_part(suite, "lab").run_id).recipe == make_part(suite, "lab").recipe


@pytest.mark.parametrize("site", ["cloud", ""])
def test_only_sites_of_the_suite_get_parts(headrace_home: Path, site: str) -> None:
    with pytest.raises(UnknownNameError, match="has no site"):
        make_part(packed_suite(headrace_home), site)


def test_the_code_is_the_suites_and_not_todays(headrace_home: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    script = code / "train.py"
    script.write_text("V = 1\n")
    (code / "mine.yaml").write_text(f"train: {{script: {script}}}\n")
    suite = packed_suite(headrace_home, recipe=str(code / "mine.yaml"))
    script.write_text("V = 2\n")
    part = make_part(suite, "box")
    copied = Path(part.recipe.train.script or "")
    assert copied.read_text() == "V = 1\n"
    assert copied.is_relative_to(part.folder.code)
    assert CodeSnapshot.of(part.folder).digests == CodeSnapshot.of(suite.folder).digests
    assert part.recipe_as_asked.train.script == str(script)
    trial = next(iter(expand(suite.recipe)))
    values = {"train.script": suite.recipe.train.script}
    moved = trial_at(part, suite, trial.model_copy(update={"values": values}))
    assert moved.values == {"train.script": str(copied)}
    suite.folder.trials.mkdir()
    place = part.folder.trial(1)
    place.path.mkdir(parents=True)
    source = json.loads(part.folder.source.read_bytes())
    place.recipe.write_text(trial_recipe(source, trial.values).model_dump_json(by_alias=True))
    suite.folder.trial(1).path.symlink_to(place.path)
    append_line(suite.folder.journal, Added(trial=trial).model_dump_json())
    found = origin(f"{suite.run_id}:1")  # as of any trial of the suite: rerun makes it anywhere
    assert found.recipe.train.script == suite.recipe.train.script


def test_later_trials_let_a_part_that_has_ended_go_on(headrace_home: Path) -> None:
    part = make_part(packed_suite(headrace_home), "box").folder
    assert not has_more_to_do(part)
    for what in ("close", "assign"):
        append_line(part.controls, Control(what=what, by="me").model_dump_json())
    append_line(part.journal, CommandsApplied(lines=1).model_dump_json())
    assert has_more_to_do(part)
    append_line(part.journal, CommandsApplied(lines=2).model_dump_json())
    assert not has_more_to_do(part)


def test_values_that_json_lacks_reach_a_part_and_its_next_driver(headrace_home: Path) -> None:
    suite = packed_suite(headrace_home)
    trial = Trial(number=1, name="a", values={"model.x": math.inf}, group=1)
    command = Control(what="assign", by="suite", trials=(Added(trial=trial),))
    (given,) = Control.model_validate_json(command.model_dump_json()).trials
    assert given.trial == trial
    append_line(suite.folder.journal, given.model_dump_json())
    with Journal(suite.folder, "a driver") as written:
        (entry,) = written.entries()
    assert isinstance(entry, Added)
    assert entry.trial == trial
    (row,) = trials_of(record(suite))
    assert row.values == {"model.x": math.inf}


def _no_tick() -> None:
    pass


def test_the_dataset_is_copied_once_and_an_interrupted_copy_is_completed(
    headrace_home: Path,
) -> None:
    suites = [packed_suite(headrace_home) for _ in range(2)]
    part, other = (make_part(suite, "box") for suite in suites)
    source = headrace_home / "lab" / "datasets" / DATASET
    target = headrace_home / "box" / "datasets" / DATASET

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring_dataset(part, killed)
    assert not (target / "manifest.json").exists()
    shards = sorted(each.name for each in (source / "shards").iterdir())
    (target / "shards" / shards[0]).write_bytes((source / "shards" / shards[0]).read_bytes())
    (target / "shards" / shards[1]).write_bytes(b"damaged")
    (target / "shards" / f".{shards[2]}.0.1").write_bytes(b"of a killed process")
    with ThreadPoolExecutor(2) as pool:
        [*pool.map(lambda each: bring_dataset(each, _no_tick), (part, other))]
    assert same_bytes(source, target)
    assert read_manifest_at(str(target)) == read_manifest_at(str(source))
    assert len([*(target / "shards").iterdir()]) == len(shards)
    copied = [parts.part_status(each.folder) for each in (part, other)]
    total = sum(each.copied_bytes for each in copied)
    assert 900_000 <= total <= 1_200_000  # the intact shard is not copied, and none twice
    assert sum(each.usd or 0.0 for each in copied) == pytest.approx(total * 0.09e-9)


def test_a_folder_that_is_gone_is_waited_for_and_not_made_anew(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_part(packed_suite(headrace_home), "box")

    def execute(_run: Run, tick: Callable[[], None], **_: object) -> None:
        tick()
        run.site_folder.path.rename(headrace_home / "elsewhere")
        with pytest.raises(StorageError, match="is gone"):
            tick()

    monkeypatch.setattr(part, "execute", execute)
    part.serve(run)
    assert not run.site_folder.path.exists()


def test_a_dataset_that_is_there_is_not_copied(headrace_home: Path) -> None:
    part = make_part(packed_suite(headrace_home), "lab")
    bring_dataset(part, _no_tick)
    assert parts.part_status(part.folder).copied_bytes == 0


def test_a_suite_that_has_not_packed_has_no_parts(headrace_home: Path) -> None:
    write_sites(headrace_home)
    words = ("suite.sites=[lab,box]", "suite.grid.seed=[1,2]")
    suite = make_run(kind="suite", site="lab", overrides=words)
    with pytest.raises(StepError, match="no packed dataset"):
        make_part(suite, "box")


def test_all_sites_that_cannot_be_used_are_named_before_anything_begins(
    headrace_home: Path,
) -> None:
    write_sites(headrace_home)
    (headrace_home / "file").touch()
    wrong = {
        "bare": {"roles": {"cpu": {}}},
        "closed": {"folder": str(headrace_home / "file" / "below")},
        "hidden": {"secrets": {"TOKEN": "env:TOKEN"}},
        "others": {"allowed_users": ["somebody-else"]},
    }
    for name, changes in wrong.items():
        write_site(headrace_home, name, **{"folder": str(headrace_home / name), **changes})
    words = f"suite.sites=[lab,box,box,nowhere,{','.join(wrong)}]"
    with pytest.raises(SiteError) as error:
        make_run(kind="suite", site="lab", overrides=(words, "suite.grid.seed=[1,2]"))
    told = str(error.value)
    for each in (
        "box: it is site 'box', which is named twice", "nowhere: There is no site", "bare: ",
        "closed: its folder", "hidden: its secret TOKEN is env:TOKEN", "others: User ",
    ):  # fmt: skip
        assert each in told
    assert "\n  lab" not in told
    assert not (headrace_home / "lab" / "runs").exists()


def test_a_site_whose_folder_cannot_be_made_yet_is_named_when_the_suite_begins(
    headrace_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_sites(headrace_home)
    write_site(headrace_home, "box", folder="/proc/headrace")  # as a mount that does not answer
    words = ("suite.sites=[lab,box]", "suite.grid.seed=[1,2]")
    with patch("os.access", return_value=True):
        make_run(kind="suite", site="lab", overrides=words)
    (told,) = (each for each in caplog.messages if "site " in each)
    assert re.fullmatch("site box: its folder /proc/headrace cannot .*; its trials wait", told)


@pytest.mark.parametrize(
    ("sites", "site", "wanted"),
    [
        ("[lab]", "lab", ()),
        ("[lab,box]", "box", "begins with 'lab'"),
        ("[lab/../lab.yaml,box]", "lab", "does not exist"),
        (f"[{','.join(f's{each}' for each in range(21))}]", "s0", "suite.sites"),
    ],
)
def test_one_site_is_the_ordinary_case(
    headrace_home: Path, sites: str, site: str, wanted: str | tuple[str, ...]
) -> None:
    write_sites(headrace_home)
    words = (f"suite.sites={sites}", "suite.grid.seed=[1,2]")
    if isinstance(wanted, str):
        with pytest.raises(UserError, match=wanted):
            make_run(kind="suite", site=site, overrides=words)
        return
    suite = make_run(kind="suite", site=site, overrides=words)
    assert suite.recipe.suite is not None
    assert suite.recipe.suite.sites == wanted
    assert DRIVER_ROLE not in suite.site.roles
    assert not parts.sites_of(suite.folder)


def test_airflow_names_sites_and_no_files(headrace_home: Path) -> None:
    write_sites(headrace_home)
    file = headrace_home / "sites" / "box.yaml"
    words = (f"suite.sites=[lab,{file}]", "suite.grid.seed=[1,2]")
    with pytest.raises(SiteError, match="in Airflow sites have names"):
        make_run(kind="suite", site="lab", overrides=words, owner="airflow:dag:run", user="ada")
    suite = make_run(kind="suite", site="lab", overrides=words)
    assert [*parts.sites_of(suite.folder)] == ["lab", "box"]
    assert parts.sites_of(suite.folder)["box"].asked == str(file)
    os.unlink(file)  # the suite keeps its sites as they were
    assert suite.recipe.suite is not None
    assert suite.recipe.suite.sites == ("lab", "box")


@pytest.mark.parametrize(
    ("given", "known", "wanted"),
    [
        ("lab,box", "", ("lab", ("suite.sites=[lab,box]",))),
        (" lab , box,", "[a,b]", ("lab", ("suite.sites=[a,b]", "suite.sites=[lab,box]"))),
        ("lab,", "", ("lab", ())),
        ("lab", "[a,b]", ("lab", ("suite.sites=[a,b]", "suite.sites=[]"))),
        (None, "[a,b]", ("a", ("suite.sites=[a,b]",))),
        (None, "", ("laptop", ())),
    ],
)
def test_sites_of_a_command(
    headrace_home: Path, given: str | None, known: str, wanted: tuple[str, tuple[str, ...]]
) -> None:
    overrides = (f"suite.sites={known}",) if known else ()
    for sites in ([given], given.split(",")) if given else (None, ()):
        assert asked_sites("digits", overrides, sites) == wanted


@pytest.mark.parametrize("words", [["--site", ","], ["--site", ""], ["--site", "", "--site", " "]])
def test_sites_without_a_name_are_refused(headrace_home: Path, words: list[str]) -> None:
    write_sites(headrace_home)
    with pytest.raises(UserError, match="without a name") as error:
        headrace("sweep", "digits", "seed=1,2", *words)
    assert "Valid: box, lab, laptop" in error.value.hint


def test_a_full_disk_is_named_without_each_file(headrace_home: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("V = 1\n")
    (code / "mine.yaml").write_text(f"train: {{script: {code}/train.py}}\n")
    suite = packed_suite(headrace_home, recipe=str(code / "mine.yaml"))
    full = shutil.Error([("a", "b", "[Errno 28] No space left on device: 'a' -> 'b'")] * 2)
    with patch("shutil.copytree", side_effect=full), pytest.raises(SiteError) as error:
        make_part(suite, "box")
    assert error.value.what.endswith("cannot be written: [Errno 28] No space left on device")


def test_the_last_cost_of_a_part_is_that_after_its_end(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = packed_suite(headrace_home)
    part = make_part(suite, "box")
    prices = {"usd": 0.05, "unpriced": 0}
    monkeypatch.setattr(site_link, "start_part", lambda _: None)
    monkeypatch.setattr(site_link, "run_cost", lambda _: SimpleNamespace(**prices))
    link = site_link.SiteLink(suite, "box")
    link.has_read.wait(30)
    link.close()
    prices["usd"] = 0.01
    link._round()
    assert link.look.usd == 0.05  # it is asked for every 20 s
    open_ledger().finish_run(part.run_id, StepState.SUCCEEDED, 1.0)
    link._round()
    assert (link.look.usd, link.look.state) == (0.01, StepState.SUCCEEDED)
    prices["unpriced"], link._cost_s = 1, -math.inf
    link._round()
    assert link.look.usd == 0.01  # the last that was known


def test_a_site_is_within_reach_while_the_ledger_is_not(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = packed_suite(headrace_home)
    make_part(suite, "box")
    monkeypatch.setattr(site_link, "start_part", lambda _: None)
    link = site_link.SiteLink(suite, "box")
    link.has_read.wait(30)
    link.close()
    seen_s = link.look.seen_s
    monkeypatch.setattr(site_link, "open_ledger", Mock(side_effect=LedgerError("away")))
    with pytest.raises(LedgerError):
        link._round()
    assert link.look.seen_s > seen_s
    assert link.look.run_id


def test_a_site_is_within_reach_while_checkpoints_are_copied_to_it(tmp_path: Path) -> None:
    source, target, ticks = tmp_path / "a", TrialFolder(tmp_path / "b"), []
    saved = source / target.checkpoints.relative_to(target.path) / "one.ckpt"
    saved.parent.mkdir(parents=True)
    saved.write_bytes(os.urandom(2**23 + 1))
    site_link._bring(source, target, lambda: ticks.append(1))
    (copied,) = target.checkpoints.iterdir()
    assert copied.read_bytes() == saved.read_bytes()
    assert len(ticks) == 3


def test_a_part_whose_dataset_cannot_be_written_fails_and_says_why(headrace_home: Path) -> None:
    run = make_part(packed_suite(headrace_home), "box")
    full = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(headrace_home / "box"))
    with patch.object(part, "bring_dataset", side_effect=full):
        part.serve(run)
    assert record(run).state is StepState.FAILED
    assert "the disk or quota is full" in parts.part_status(run.folder).why


def test_the_commands_of_a_part_that_has_ended_are_read_once(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = packed_suite(headrace_home)
    made = make_part(suite, "box")
    open_ledger().finish_run(made.run_id, StepState.SUCCEEDED, 1.0)
    monkeypatch.setattr(site_link, "start_part", lambda _: None)
    link = site_link.SiteLink(suite, "box")
    link.has_read.wait(30)
    link.close()
    with patch.object(site_link, "has_more_to_do", wraps=has_more_to_do) as read:
        link._round()
        assert not read.called
        append_line(made.folder.controls, Control(what="assign", by="me").model_dump_json())
        link._round()
        link._round()
        assert read.call_count == 2  # there is more, until the part has begun again


def test_checkpoints_that_are_not_kept_go_once_the_folder_is_there(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = packed_suite(headrace_home)
    part = make_part(suite, "box").folder
    part.trial(1).checkpoints.mkdir(parents=True)
    monkeypatch.setattr(site_link, "start_part", lambda _: None)
    link = site_link.SiteLink(suite, "box")
    link.has_read.wait(30)
    link.close()
    away = part.path.rename(part.path.with_name("away"))
    link.send(site_link.Message(surplus=(1,)))
    with pytest.raises(UnknownNameError):
        link._round()
    away.rename(part.path)
    assert part.trial(1).checkpoints.is_dir()
    link._round()
    assert not part.trial(1).checkpoints.exists()
    assert link.num_unsent == 0


def test_a_check_says_of_which_sites_no_batch_was_tried(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sites(headrace_home)
    monkeypatch.setattr(check, "_tried", lambda *_: iter(()))
    seen = {each.subject: each.seen for each in check.check("digits", (), ["lab,box"]).findings}
    assert seen["sites"].startswith("the batch was that of lab; of box only")
    alone = check.check("digits", (), ["lab"]).findings
    assert [each.subject for each in alone] == ["time"]


def test_the_driver_takes_no_place_of_its_site(headrace_home: Path) -> None:
    suite = packed_suite(headrace_home)
    ledger = open_ledger()

    def enter(role: str) -> None:
        named = {"key": f"{suite.run_id}/{role}", "run_id": suite.run_id, "site_name": "one"}
        ledger.add_lease(lease_row(f"{role}-1", role=role, backend="local", **named), 1)

    enter(DRIVER_ROLE)
    enter("gpu")
    assert len(ledger.active_leases("one")) == 2


def test_another_dataset_of_the_same_name_is_replaced(headrace_home: Path) -> None:
    part = make_part(packed_suite(headrace_home), "box")
    target = headrace_home / "box" / "datasets" / DATASET
    make_dataset(target, name="older")
    bring_dataset(part, _no_tick)
    assert same_bytes(headrace_home / "lab" / "datasets" / DATASET, target)


def test_a_part_ends_when_its_suite_was_left_by_a_second_ctrl_c(headrace_home: Path) -> None:
    """A suite whose process was only killed has a driver that is still at work, or will be."""
    suite = packed_suite(headrace_home, owner=ended_owner())
    made = make_part(suite, "box")
    attempt_row_of(suite, "suite", lease_on_disk(suite, DRIVER_ROLE))
    part._until_suite_ends(made)()
    open_ledger().set_attempt(suite.run_id, "suite", 1, state=StepState.CANCELLED)
    with pytest.raises(KeyboardInterrupt):
        part._until_suite_ends(made)()
