"""A run's copy of its code: what is in it, what leads out of it, and what is said of the rest."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest

from headrace.errors import UserError, warn_once
from headrace.execution.resume import take_over_changed
from headrace.files.atomic import read_record
from headrace.ledger.ledger import open_ledger
from headrace.recipe.site import Site
from headrace.runs import code_snapshot
from headrace.runs.code_state import CodeSnapshot, CodeTree
from headrace.runs.lifecycle import finish_run
from headrace.runs.origin import origin, side_by_side
from headrace.runs.owners import process_owner
from headrace.runs.runs import Run, open_run
from headrace.states import StepState
from support.runs import ended_owner, make_run

SUITE = 'suite={points: [{"train.script": AT/scripts/train.py}, {"train.script": AT/other.py}]}'


def put(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.fixture(params=["git", "plain"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A script with a module beside it, its data, and an output that git would ignore."""
    folder = tmp_path / "project"
    put(folder / "scripts" / "train.py", "import helper\n").chmod(0o755)
    put(folder / "scripts" / "helper.py", "V = 1\n")
    put(folder / "scripts" / "vocabulary.bin", "words")
    put(folder / "scripts" / "out" / "old.txt", "ignored")
    put(folder / "scripts" / ".venv" / "pyvenv.cfg", "")
    put(folder / "data" / "x.csv", "1,2\n")
    put(folder / ".gitignore", "out/\n/data/\n.venv/\n")
    if request.param == "git":
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def run_of(project: Path, *words: str, **changes: object) -> Run:
    file = put(project / "mine.yaml", f"train: {{script: {project}/scripts/train.py}}\n")
    overrides = tuple(each.replace("AT", str(project)) for each in words)
    return make_run(recipe=str(file), overrides=overrides, **changes)


def tree_of(run: Run) -> CodeTree:
    (tree,) = CodeSnapshot.of(run.folder).trees
    return tree


def test_runs_of_one_recipe_are_alike_wherever_their_copies_are(project: Path) -> None:
    """Forecasts, the ranking of sites and comparisons find the earlier one."""
    first, second = run_of(project), run_of(project)
    assert first.recipe.train.script != second.recipe.train.script
    for run in (first, second):
        assert run.recipe_as_asked.train.script == f"{project}/scripts/train.py"
    assert side_by_side((origin(first.run_id), origin(second.run_id))) == ()
    digests = [open_ledger().run(run.run_id).recipe_fingerprint for run in (first, second)]
    assert len({each.partition(";")[0] for each in digests}) == 1


def test_an_edit_does_not_reach_a_run_and_paths_lead_where_they_led(project: Path) -> None:
    script = Path(run_of(project).recipe.train.script or "")
    put(project / "scripts" / "helper.py", "V = 2\n")
    assert not script.is_relative_to(project)
    assert (script.parent / "helper.py").read_text() == "V = 1\n"
    assert os.access(script, os.X_OK)
    assert (script.parents[1] / "data" / "x.csv").read_text() == "1,2\n"
    for name in ("out/old.txt", "vocabulary.bin"):
        assert (script.parent / name).read_text() == (project / "scripts" / name).read_text()
    assert (script.parent / "out").is_symlink()
    is_git = (project / ".git").exists()
    assert (script.parent / "vocabulary.bin").is_symlink() is not is_git


def test_a_run_of_a_runs_recipe_has_the_code_of_that_run(project: Path) -> None:
    first = run_of(project)
    put(project / "scripts" / "helper.py", "V = 2\n")
    again = make_run(recipe=str(first.folder.recipe), site=str(first.folder.site))
    script = Path(again.recipe.train.script or "")
    assert script.is_relative_to(again.folder.path)
    assert (script.parent / "helper.py").read_text() == "V = 1\n"
    assert (script.parents[1] / "data" / "x.csv").exists()
    assert tree_of(again).digest == tree_of(first).digest
    changed = [each.part for each in side_by_side((origin(first.run_id), origin(again.run_id)))]
    assert changed == []
    third = run_of(project)
    changed = [each.key for each in side_by_side((origin(first.run_id), origin(third.run_id)))]
    assert "copy" in changed


def test_a_run_goes_on_with_its_code_or_with_the_code_of_now(project: Path) -> None:
    run = run_of(project, owner=ended_owner())
    put(project / "scripts" / "helper.py", "V = 2\n")
    helper = Path(run.recipe.train.script or "").parent / "helper.py"
    kept = take_over_changed(run.run_id, process_owner(), ["train.max_restarts=1"], "")
    assert (kept.recipe.train.script, helper.read_text()) == (run.recipe.train.script, "V = 1\n")
    finish_run(kept, StepState.FAILED)
    new = take_over_changed(run.run_id, process_owner(), (), "", new_code=True)
    assert (new.recipe.train.script, helper.read_text()) == (run.recipe.train.script, "V = 2\n")
    (change,) = open_run(run.run_id).request.resumed[-1].changes
    assert change.key == f"code of {tree_of(run).source}"
    assert change.before != change.after == tree_of(run).digest


def test_a_run_without_a_copy_has_no_new_code() -> None:
    run = make_run(owner=ended_owner())
    assert not run.folder.code_record.exists()
    with pytest.raises(UserError, match="no copy of its code"):
        take_over_changed(run.run_id, process_owner(), (), "", new_code=True)


def test_scripts_of_trials_and_of_commands_are_copied(project: Path) -> None:
    put(project / "other.py", "")
    run = run_of(project, SUITE, kind="suite")
    points = run.recipe.suite.points if run.recipe.suite else ()
    assert [Path(str(point["train.script"])).is_relative_to(run.folder.code) for point in points]
    source = json.loads(run.folder.source.read_bytes())
    assert Path(source["train"]["script"]).is_relative_to(run.folder.code)
    command = f"train.command=[python3,{project}/other.py,--x]"
    started = run_of(project, "~train.script", command).recipe.train.command
    assert (started[0], started[2]) == ("python3", "--x")
    assert Path(str(started[1])).is_relative_to(open_run(run.run_id).site_folder.path)


def test_a_site_with_a_fence_allows_the_copy(project: Path) -> None:
    run = run_of(project)
    site = read_record(run.folder.site, Site)
    assert site is not None
    assert str(run.folder.code) in site.allowed_code


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("MAX_FILE_BYTES", "scripts/helper.py"),
        ("MAX_FILES", "all 2 files, 0 MiB, more than 1 files or 64 MiB"),
        ("_MAX_ENTRIES", "more than 1 entries"),
    ],
)
def test_what_is_not_copied_is_said(
    tmp_path: Path,
    limit: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    project = tmp_path / "large"
    put(project / "scripts" / "train.py", "")
    helper = put(project / "scripts" / "helper.py", "V = 1\n")
    monkeypatch.setattr(code_snapshot, limit, 1)
    script = Path(run_of(project).recipe.train.script or "")
    helper.write_text("V = 2\n")
    assert (script.parent / "helper.py").read_text() == "V = 2\n"
    assert f"{words}" in caplog.text


@pytest.mark.parametrize(
    "text", ['{"dir_info": {"editable": true}}', '{"dir_info":{"editable":true}}']
)
def test_editable_packages_are_named(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As pip and uv write their origin."""
    info = tmp_path / "site" / "lab-1.dist-info"
    put(info / "METADATA", "Metadata-Version: 2.1\nName: lab\nVersion: 1\n")
    put(info / "direct_url.json", text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    warn_once.cache_clear()
    put(tmp_path / "project" / "scripts" / "train.py", "")
    run_of(tmp_path / "project")
    assert "Installed as editable, so that later edits reach the run: lab" in caplog.text


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True)


def test_links_inside_the_code_lead_into_the_copy(project: Path) -> None:
    """As `lab -> src/lab` does, or one configuration under two names."""
    (project / "scripts" / "lab").symlink_to("src/lab")
    (project / "scripts" / "alias.py").symlink_to("helper.py")
    put(project / "scripts" / "src" / "lab" / "__init__.py", "V = 1\n")
    run = run_of(project, owner=ended_owner())
    folder = Path(run.recipe.train.script or "").parent
    put(project / "scripts" / "src" / "lab" / "__init__.py", "V = 2\n")
    put(project / "scripts" / "helper.py", "V = 2\n")
    for name in ("lab/__init__.py", "alias.py"):
        assert (folder / name).read_text() == "V = 1\n"
    take_over_changed(run.run_id, process_owner(), (), "", new_code=True)
    for name in ("lab/__init__.py", "alias.py"):
        assert (folder / name).read_text() == "V = 2\n"


def test_repositories_inside_a_repository_are_named(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _git(project, "init", "-q", ".")
    put(project / "inner" / "n.py", "")
    _git(project, "init", "-q", "inner")
    assert tree_of(run_of(project)).not_copied == ("inner",)
    assert "later edits reach the run: inner" in caplog.text


def test_a_copy_holds_no_copies_of_other_runs(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HEADRACE_HOME in the user's repository, and not ignored by git."""
    monkeypatch.setenv("HEADRACE_HOME", str(project / "runs-of-mine"))
    first, second = run_of(project), run_of(project)
    assert second.folder.path.is_relative_to(project)
    assert tree_of(first).digest == tree_of(second).digest


def test_a_large_file_may_have_any_name(project: Path) -> None:
    put(project / "scripts" / os.fsdecode(b"m\xfc.py"), "#" * (code_snapshot.MAX_FILE_BYTES + 1))
    assert tree_of(run_of(project)).not_copied == ("scripts/m\\udcfc.py",)


def test_a_copy_that_failed_takes_no_space(project: Path, tmp_path: Path) -> None:
    put(project / "scripts" / "large.py", "#" * 50_000)
    target = tmp_path / "copy" / "0" / "project"
    tree = CodeTree(
        source=str(project), asked=str(project), target=str(target), places=("scripts",)
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        copied = code_snapshot._copied(tree)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (copied.digest, target.exists()) == ("", False)
