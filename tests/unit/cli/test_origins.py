"""`headrace diff` and `headrace rerun`: what runs and trials were made of."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from headrace.errors import UnknownNameError, UserError
from headrace.files.atomic import write_json, write_record
from headrace.ledger.ledger import open_ledger
from headrace.recipe.load import BUILT_IN, load_recipe
from headrace.recipe.recipe import Recipe
from headrace.runs.runs import Run
from headrace.states import Removal, StepState
from headrace.status.run_page import run_page
from headrace.steps.mailbox import StepResult
from headrace.suites.points import trial_recipe
from support.command_line import headrace
from support.past_runs import step_ended
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.suite_journal import added, ended, journal, make_suite, started

pytestmark = pytest.mark.usefixtures("headrace_home")

RECIPE = Path(__file__).parents[3] / "pipelines/headrace/recipe/builtin/recipes/digits.yaml"


def told(*arguments: str) -> list[tuple[str, ...]]:
    done = headrace(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    rows = found["rows"] if arguments[0] == "diff" else found
    return [(each["part"], each["key"], *each["values"]) for each in rows]


def gave(run: Run, accuracy: float, fingerprint: str) -> None:
    lease_id = lease_on_disk(run)
    outputs = {
        "pack": {"dataset": "/data/x", "fingerprint": fingerprint},
        "train": {"metrics": {"loss": 0.5, "accuracy": 0.1}},
        "evaluate": {"metrics": {"accuracy": accuracy}},
    }
    for step, each in outputs.items():
        attempt_row_of(run, step, lease_id)
        changes = {"state": StepState.SUCCEEDED, "outputs": each}
        open_ledger().set_attempt(run.run_id, step, 1, **changes)


def with_packages(run: Run, packages: dict[str, str]) -> None:
    record = json.loads(run.folder.provenance.read_text())
    write_json(run.folder.provenance, {**record, "packages": packages})


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "mine.yaml").write_bytes(RECIPE.read_bytes())
    commit(folder, "first")
    return folder


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Runs that would be carried out."""
    found: list[Run] = []
    monkeypatch.setattr("headrace.cli.origins.carry_out", lambda job, _, as_json: found.append(job))
    return found


def commit(folder: Path, message: str) -> str:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", message)):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    done = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    return subprocess.run(done, check=True, capture_output=True, text=True).stdout.strip()


def test_two_runs_that_are_alike_differ_in_nothing():
    first, second = make_run(), make_run()
    assert told("diff", first.run_id, second.run_id) == []
    assert "No recorded part differs" in headrace("diff", first.run_id, second.run_id).stdout


def test_runs_differ_in_recipe_packages_data_and_metrics():
    first, second = make_run(), make_run(overrides=("trainer.max_epochs=3",))
    gave(first, 0.9, "aaa")
    gave(second, 0.95, "bbb")
    with_packages(first, {"torch": "2.12.0", "numpy": "2.0", "gone": "1"})
    with_packages(second, {"torch": "2.13.0", "numpy": "2.0"})
    assert told("diff", first.run_id, second.run_id) == [
        ("recipe", "trainer.max_epochs", "15", "3"),
        ("packages", "gone", "1", ""),
        ("packages", "torch", "2.12.0", "2.13.0"),
        ("data", "fingerprint", "aaa", "bbb"),
        ("metrics", "accuracy", "0.9", "0.95"),
    ]
    shown = headrace("diff", first.run_id, second.run_id, columns=80).stdout
    assert "trainer.max_epochs" in shown
    assert max(map(len, shown.splitlines())) <= 200


def test_any_number_of_runs_stand_side_by_side_and_a_suite_by_its_best_trial():
    runs = [make_run(overrides=(f"seed={number}",)) for number in (1, 2, 3, 3)]
    sought = ("suite.grid={seed: [1, 2]}", "trainer.monitor=val_loss")
    suite = make_run(kind="suite", overrides=sought)
    for number in (1, 2):
        recipe = trial_recipe(json.loads(suite.folder.source.read_bytes()), {"seed": number})
        write_record(suite.folder.trial(number).recipe, recipe)
    begun = [added(1, seed=1), started(1), added(2, seed=2), started(2)]
    journal(suite.folder, *begun, ended(1, 0.5), ended(2, 0.25))
    names = [*(run.run_id for run in runs), suite.run_id]
    rows = told("diff", *names)
    assert ("recipe", "seed", "1", "2", "3", "3", "2") in rows
    assert all(len(set(values)) > 1 for _, _, *values in rows)
    page = json.loads(headrace("diff", *names, "--json").stdout)
    assert page["names"] == [*names[:-1], f"{suite.run_id}:2"]
    shown = headrace("diff", *names, columns=80).stdout
    assert f"5: {suite.run_id}:2" in shown


def test_runs_of_other_commits_and_changes_differ_in_them(repository: Path):
    first = make_run(recipe=str(repository / "mine.yaml"))
    before = json.loads(first.folder.provenance.read_text())["git"]["commit"]
    (repository / "code.py").write_text("x = 1\n")
    dirty = make_run(recipe=str(repository / "mine.yaml"))
    ((part, key, clean, changed),) = told("diff", first.run_id, dirty.run_id)
    assert (part, key, clean) == ("code", "uncommitted", "nothing")
    assert "bytes)" in changed
    after = commit(repository, "second")
    third = make_run(recipe=str(repository / "mine.yaml"))
    assert told("diff", first.run_id, third.run_id) == [("code", "commit", before, after)]


def test_rerun_tells_what_is_different_today_and_how_to_have_the_code_as_it_was(
    repository: Path, tmp_path: Path
):
    (repository / "code.py").write_text("x = 1\n")
    run = make_run(recipe=str(repository / "mine.yaml"))
    gave(run, 0.9, "aaa")
    before = json.loads(run.folder.provenance.read_text())["git"]["commit"]
    known = json.loads(run.folder.provenance.read_text())["packages"]
    with_packages(run, {**known, "torch": "1.0"})
    after = commit(repository, "second")
    found = {
        (part, key): (old, new) for part, key, old, new in told("rerun", run.run_id, "--check")
    }
    assert found[("code", "commit")] == (before, after)
    assert found[("code", "uncommitted")][1] == "nothing"
    assert found[("packages", "torch")] == ("1.0", known["torch"])
    assert found[("data", "fingerprint")] == ("aaa", "none: /data/x is gone or damaged")
    assert not any(part == "metrics" for part, _ in found)
    shown = headrace("rerun", run.run_id, "--check").stdout
    (line,) = (line for line in shown.splitlines() if line.startswith("To restore the code: "))
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(repository), str(clone)], check=True)
    way_back = line.removeprefix("To restore the code: ").replace(str(repository), str(clone))
    subprocess.run(way_back, shell=True, check=True, capture_output=True)
    assert (clone / "code.py").read_text() == "x = 1\n"


def test_rerun_asks_for_the_same_recipe_seed_and_site(made: list[Run]):
    run = make_run(overrides=("seed=11", "trainer.max_epochs=3"))
    assert "No recorded part is different" in headrace("rerun", run.run_id).stdout
    (again,) = made
    assert again.run_id != run.run_id
    assert (again.recipe, again.site) == (run.recipe, run.site)
    assert told("diff", run.run_id, again.run_id) == []


@pytest.mark.parametrize(
    ("now", "expected"), [("aa", "the same as then"), ("bb", "not the same: then aa")]
)
def test_rerun_compares_the_weights(now: str, expected: str, monkeypatch: pytest.MonkeyPatch):
    def train(run: Run, weights: str) -> None:
        outputs = {"weights_xxh3": weights}
        step_ended(run, "train", lease_on_disk(run), 1.0, outputs=outputs)

    run = make_run()
    train(run, "aa")
    monkeypatch.setattr("headrace.cli.origins.carry_out", lambda job, _, as_json: train(job, now))
    assert f"weights: {now}, {expected}" in headrace("rerun", run.run_id).stdout


def test_a_trial_is_rerun_by_the_record_of_its_suite(made: list[Run]):
    suite = make_suite()
    trial = Recipe.model_validate({**suite.recipe.model_dump(by_alias=True), "seed": 42})
    write_record(suite.folder.trial(3).recipe, trial)
    journal(suite.folder, added(3, seed=42), started(3))
    assert told("diff", suite.run_id, f"{suite.run_id}:3") == [("recipe", "seed", "7", "42")]
    headrace("rerun", f"{suite.run_id}:3")
    assert (made[0].recipe, made[0].site) == (trial, suite.site)
    metrics = {"val_loss": 0.25, "accuracy": 0.5}
    journal(suite.folder, ended(3, metrics=metrics))
    other = Recipe.model_validate({**suite.recipe.model_dump(by_alias=True), "seed": 43})
    write_record(suite.folder.trial(4).recipe, other)
    journal(suite.folder, added(4, seed=43), started(4), ended(4, metrics={"val_loss": 0.5}))
    assert told("diff", f"{suite.run_id}:3", f"{suite.run_id}:4") == [
        ("recipe", "seed", "42", "43"),
        ("metrics", "accuracy", "0.5", ""),
        ("metrics", "val_loss", "0.25", "0.5"),
    ]
    result = StepResult(
        state=StepState.SUCCEEDED, started_at=1, finished_at=2, outputs={"world_size": 4}
    )
    write_record(suite.folder.trial(3).step(2).result, result)
    headrace("rerun", f"{suite.run_id}:3")
    assert (made[1].recipe.train.nodes, made[1].recipe.train.ranks_per_node) == (1, 4)
    for wrong in ("5", "x", ""):
        with pytest.raises(UnknownNameError, match=f"no trial '?{wrong}"):
            headrace("rerun", f"{suite.run_id}:{wrong}")
    with pytest.raises(UnknownNameError, match="There is no run 'nothing'"):
        headrace("diff", "nothing", suite.run_id)
    open_ledger().finish_run(suite.run_id, StepState.SUCCEEDED, 2.0)
    assert open_ledger().set_removed(suite.run_id, Removal(at=3.0, by="ada"))
    shutil.rmtree(suite.folder.path / "trials")
    with pytest.raises(UnknownNameError, match="was removed on 1970-01-01 by ada"):
        headrace("rerun", f"{suite.run_id}:3")


def test_a_suite_is_asked_for_again_by_its_source(made: list[Run]):
    words = ("data.global_batch_size=${seed}", "suite.grid={seed: [16, 32]}", "suite.seeds=null")
    suite = make_run(kind="suite", overrides=words)
    headrace("rerun", suite.run_id)
    (again,) = made
    assert (again.request.kind, again.recipe) == ("suite", suite.recipe)
    assert json.loads(again.folder.source.read_text()) == json.loads(
        suite.folder.source.read_text()
    )
    assert "${seed}" in again.folder.source.read_text()


def test_an_older_record_is_compared_by_what_it_knows():
    run, old = make_run(), make_run()
    record = json.loads(old.folder.provenance.read_text())
    versions = {"numpy": record["packages"]["numpy"], "torch": "1.0"}
    kept = {key: record[key] for key in ("recipe_file", "python")}
    write_json(old.folder.provenance, {**kept, "git": None, "versions": versions})
    now = record["packages"]["torch"]
    assert told("diff", old.run_id, run.run_id) == [("packages", "torch", "1.0", now)]


def test_rerun_tells_when_an_image_is_another_one(headrace_home: Path, tmp_path: Path):
    """Of an image in a file nobody reads the whole; a folder is told by what lies in it."""
    file, folder = tmp_path / "image.sif", tmp_path / "image"
    (folder / "usr").mkdir(parents=True)
    (folder / "usr" / "python").write_text("a")
    file.write_bytes(bytes(10_000_000))
    site = yaml.safe_load((BUILT_IN / "sites" / "slurm-dev.yaml").read_text())
    for role, image in (("cpu", file), ("gpu", folder)):
        runtime = {"runtime": "charliecloud", "image": str(image)}
        site["roles"][role]["batch"] = {
            **site["roles"][role].get("batch", {}),
            "container": runtime,
        }
    (headrace_home / "sites").mkdir()
    (headrace_home / "sites" / "mine.yaml").write_text(yaml.safe_dump({**site, "name": "mine"}))
    run = make_run(site="mine")

    def changed() -> set[str]:
        return {key for part, key, *_ in told("rerun", run.run_id, "--check") if part == "images"}

    told_images = json.loads(run.folder.provenance.read_text())["images"]
    assert told_images.keys() == {str(file), str(folder)}
    assert run_page(run.run_id, can_act=False).images == told_images
    open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, finished_at=1.0)
    shown = headrace("status", run.run_id, columns=400).stdout
    for image, digest in told_images.items():
        assert f"{image} ({digest})" in shown
    assert changed() == set()
    with file.open("r+b") as image:
        image.write(b"x")
    (folder / "usr" / "python").write_text("ab")
    assert changed() == {str(file), str(folder)}
    file.unlink()  # it may lie where this machine does not see it
    assert changed() == {str(folder)}


def by_hand(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


@pytest.mark.parametrize(
    ("part", "before", "after", "way"),
    [
        ("recipe", '"seed": 7', '"seed": 8', "headrace run {0.recipe} --site {0.site}"),
        ("site", '_checkpoints": "refuse"', '_checkpoints": "allow"', "--site {0.site}"),
    ],
)
def test_a_recipe_or_site_that_was_changed_by_hand_is_told_and_not_run(
    part: str, before: str, after: str, way: str
):
    run, other = make_run(), make_run()
    file = getattr(run.folder, part)
    kept = file.read_bytes()
    by_hand(file, before, after)
    for words in (("diff", run.run_id, other.run_id), ("diff", other.run_id, run.run_id),
                  ("rerun", run.run_id), ("rerun", run.run_id, "--check"),
                  ("resume", run.run_id), ("evaluate", run.run_id)):  # fmt: skip
        with pytest.raises(UserError, match=f"The {part} of .* was changed after it beg") as caught:
            headrace(*words)
        assert way.format(run.folder) in caught.value.hint
    assert headrace("status", run.run_id).exit_code == 0  # what only informs goes on
    if part == "recipe":
        assert load_recipe(str(run.folder.recipe)).seed == 8  # the way out
    file.write_bytes(kept)
    assert told("diff", run.run_id, other.run_id) == []


def test_an_earlier_release_recorded_no_digest_of_the_site():
    run, other = make_run(), make_run()
    record = open_ledger().run(run.run_id)
    of_recipe = record.recipe_fingerprint.partition(";")[0]
    open_ledger().change_run(run.run_id, recipe_fingerprint=of_recipe)
    run.folder.site.write_bytes(run.folder.site.read_bytes() + b" ")
    assert told("diff", run.run_id, other.run_id) == []
    by_hand(run.folder.recipe, '"seed": 7', '"seed": 8')
    with pytest.raises(UserError, match="The recipe of"):
        headrace("diff", run.run_id, other.run_id)


def test_a_run_of_an_earlier_release_has_no_digest():
    run, other = make_run(), make_run()
    open_ledger().change_run(run.run_id, recipe_fingerprint="0123456789abcdef0123456789abcdef")
    by_hand(run.folder.recipe, '"seed": 7', '"seed": 8')
    assert told("diff", run.run_id, other.run_id) == [("recipe", "seed", "8", "7")]


def test_the_recipe_of_a_trial_that_was_changed_by_hand_is_told():
    suite = make_run(kind="suite", overrides=("suite.grid={seed: [1, 2]}",))
    trial = trial_recipe(json.loads(suite.folder.source.read_bytes()), {"seed": 2})
    write_record(suite.folder.trial(2).recipe, trial)
    journal(suite.folder, added(2, seed=2), started(2))
    assert told("diff", suite.run_id, f"{suite.run_id}:2")
    by_hand(suite.folder.trial(2).recipe, '"seed": 2', '"seed": 3')
    with pytest.raises(UserError, match=r":2 was changed after it began"):
        headrace("rerun", f"{suite.run_id}:2")
    by_hand(suite.folder.source, '"seed": 7', '"seed": 9')
    with pytest.raises(UserError, match="was changed after it began"):
        headrace("rerun", suite.run_id)
