"""Who answers for a run, and what is written down about where it came from."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from headrace.processes.identity import ProcessIdentity
from headrace.recipe.difference import Change
from headrace.recipe.load import BUILT_IN
from headrace.runs.code_state import MAX_DIFF_BYTES, Commit, code_state
from headrace.runs.owners import owner_is_gone, owner_process, process_owner
from headrace.runs.provenance import read_provenance
from support.runs import ended_owner, make_run

RECIPE = Path(__file__).parents[3] / "pipelines/headrace/recipe/builtin/recipes/digits.yaml"


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one commit with a recipe in a folder of it."""
    folder = tmp_path / "project"
    (folder / "recipes").mkdir(parents=True)
    (folder / "recipes" / "mine.yaml").write_bytes(RECIPE.read_bytes())
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_commit_and_whether_the_tree_differs_from_it(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert code_state(repository / "recipes", ())[0].git == Commit(commit=commit, dirty=False)
    (repository / "new.py").write_text("x = 1\n")
    assert code_state(repository, ())[0].git == Commit(commit=commit, dirty=True)


def test_outside_a_repository_and_without_git_there_is_no_commit(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code_state(tmp_path, ())[0].git is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_state(repository, ())[0].git is None


def test_a_run_records_the_state_of_its_recipes_repository(repository: Path) -> None:
    run = make_run(recipe=str(repository / "recipes" / "mine.yaml"))
    assert read_provenance(run.folder).git == code_state(repository, ())[0].git


def test_a_run_keeps_what_is_not_committed_so_that_it_can_be_applied_again(
    repository: Path, tmp_path: Path
) -> None:
    recipe = repository / "recipes" / "mine.yaml"
    recipe.write_text(recipe.read_text() + "# changed\n")
    (repository / "new file.py").write_text("x = 1\n")
    (repository / "raw.bin").write_bytes(bytes(range(256)))
    (repository / "staged.py").write_text("y = 2\n")
    git(repository, "add", "staged.py")
    before = git(repository, "status", "--porcelain")
    run = make_run(recipe=str(recipe))
    assert git(repository, "status", "--porcelain") == before
    assert read_provenance(run.folder).left_out == ()
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    git(clone, "apply", str(run.folder.diff))
    for name in ("recipes/mine.yaml", "new file.py", "raw.bin", "staged.py"):
        assert (clone / name).read_bytes() == (repository / name).read_bytes()


def test_a_clean_tree_leaves_no_diff(repository: Path) -> None:
    assert not make_run(recipe=str(repository / "recipes/mine.yaml")).folder.diff.exists()


def test_of_too_much_that_is_not_committed_whole_files_are_kept_and_the_others_named(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.py", "b.py", "c.py"):
        (repository / name).write_text(f"# {name}\n" * 100)
    (repository / "large.txt").write_text("x" * 300_000)
    found, diff = code_state(repository, (), max_bytes=1500)
    assert diff is not None
    assert found.left_out == ("large.txt", "b.py", "c.py")
    assert len(diff) < 1500 < MAX_DIFF_BYTES
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    (tmp_path / "diff").write_bytes(diff)
    git(clone, "apply", str(tmp_path / "diff"))
    assert (clone / "a.py").is_file()
    assert not (clone / "b.py").exists()
    make_run(recipe=str(repository / "recipes/mine.yaml"))
    assert "too large to be kept with the run: large.txt" in caplog.text


@pytest.mark.parametrize("size", [1, MAX_DIFF_BYTES])
def test_new_files_may_have_names_that_are_not_in_utf_8(repository: Path, size: int) -> None:
    (repository / os.fsdecode(b"m\xfc.py")).write_bytes(b"#" * size)
    found, diff = code_state(repository, ())
    assert found.git == Commit(commit=git(repository, "rev-parse", "HEAD").strip(), dirty=True)
    assert found.left_out == (() if size == 1 else ("m\\udcfc.py",))
    assert found.model_dump_json()
    assert diff is not None


def test_a_run_of_a_recipe_in_a_runs_folder_has_the_code_of_that_run(repository: Path) -> None:
    first = make_run(recipe=str(repository / "recipes" / "mine.yaml"))
    recorded = read_provenance(make_run(recipe=str(first.folder.recipe)).folder)
    assert recorded.git == code_state(repository, ())[0].git


def test_a_run_of_a_built_in_recipe_records_that_of_the_working_folder(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    assert read_provenance(make_run().folder).git == code_state(repository, ())[0].git is not None


def test_a_run_records_what_it_changes_of_its_recipe_file() -> None:
    recorded = read_provenance(make_run(overrides=("trainer.max_epochs=3",)).folder)
    assert recorded.changes == (Change(key="trainer.max_epochs", before="15", after="3"),)


def test_a_place_that_is_only_made_absolute_is_no_change(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "raw").mkdir()
    text = RECIPE.read_text()
    source = next(line for line in text.splitlines() if line.startswith("  source:"))
    (tmp_path / "mine.yaml").write_text(text.replace(source, "  source: raw"))
    monkeypatch.chdir(tmp_path)
    run = make_run(recipe="mine.yaml", overrides=("seed=3",))
    assert run.recipe.dataset.source == str(tmp_path / "raw")
    assert [change.key for change in read_provenance(run.folder).changes] == ["seed"]


def test_a_file_that_is_no_recipe_without_the_overrides_has_no_changes(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = (BUILT_IN / "recipes" / "digits.yaml").read_text()
    file.write_text(text.replace("seed: 7", "seed: none"))
    run = make_run(recipe=str(file), overrides=("seed=1",))
    assert read_provenance(run.folder).changes == ()


def test_an_owner_text_names_the_process_that_wrote_it():
    owner = process_owner()
    assert owner_process(owner) == ProcessIdentity.of()
    assert not owner_is_gone(owner)


def test_an_ended_process_is_gone():
    assert owner_is_gone(ended_owner())


def test_nothing_is_known_of_processes_elsewhere_and_of_other_owners():
    assert not owner_is_gone("cli:another-host:1:2.5")
    assert owner_process("airflow:headrace_train:manual__2026-01-02T03:04:05+00:00") is None
    assert not owner_is_gone("airflow:headrace_train:manual")
