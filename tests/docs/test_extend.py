"""docs/how-to/extend.md: its packages, installed beside headrace, do what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from headrace.batch.system import BatchSystem
from headrace.entry_points import load_group
from headrace.errors import UserError
from headrace.ledger.ledger import open_ledger
from headrace.ledger.newest import newest_runs
from headrace.recipe.backend import Backend
from headrace.runs.runs import open_run, outputs_of
from headrace.states import StepState
from headrace.status.run import run_views
from headrace.steps.step_kinds import step_kind
from headrace_pages.added import added, runs_with_columns
from headrace_pages.app import app
from headrace_probes.probe_records import ProbeOptions
from support.added_packages import PAGE, blocks, entry_points_of, found_in, install
from support.runs import make_run
from support.sources import product_modules


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that packages are found in, by this process and those that it starts."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with found_in(folder):
        yield folder


def headrace(*words: str) -> str:
    """What a command prints, of a process of its own: this one has found its commands already."""
    program = [sys.executable, "-c", "from headrace.cli.app import main; main()"]
    return subprocess.run([*program, *words], capture_output=True, text=True, check=True).stdout


def test_the_page_names_every_group_and_what_an_entry_is():
    source = "".join(path.read_text() for path in product_modules())
    groups = set(re.findall(r'^[A-Z]+ = "(headrace\.[a-z]+)"$', source, re.M))
    rows = dict(re.findall(r"^\| `(headrace\.\w+)` \| (.*?) \|", PAGE, re.M))
    assert len(groups) == 7
    assert rows.keys() == groups
    assert rows["headrace.commands"].startswith("a mapping of names to [`Command`]")


def test_the_page_names_hooks_of_a_batch_system_that_are_there():
    section = PAGE.partition("**The gang contract.**")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")]
    cells = " ".join(cell for row in rows for cell in row.split(" | ")[:2])
    named = set(re.findall(r"`(\w+)(?:\([\w, ]*\))?`", cells))
    known = {*dir(BatchSystem), *BatchSystem.__annotations__, *Backend.__annotations__}
    others = {"hosts", "launch", "exclude", "poll", "HEADRACE_NODE_INDEX", "host"}
    assert {"job_variable", "job_nodes", "_check_queue", "limits", "accounting"} <= named
    assert named - known - others == set()


def test_a_command(site_packages: Path, headrace_home: Path):
    points = entry_points_of("A command")
    install(site_packages, "headrace_greeting", blocks("A command", "python"), points)
    assert "List the newest runs." in headrace("--help")
    assert "headrace newest --num 1" in headrace("newest", "--help")
    run = make_run()
    assert headrace("newest", "--num", "1") == f"{run.run_id} in {run.folder.path}\n"


def test_a_step(site_packages: Path, headrace_home: Path, no_leftover_processes: None):
    """Its run is made, done on a lease and kept as any other; one that fails tells its words."""
    install(site_packages, "headrace_room", blocks("A step", "python"), entry_points_of("A step"))
    headrace("room")
    (run_id,) = newest_runs(1)
    (attempt,) = open_ledger().attempts(run_id)
    assert (attempt.kind, attempt.state) == ("room", StepState.SUCCEEDED)
    assert run_views([open_ledger().run(run_id)])[0].kind == "room"
    assert outputs_of(run_id)["room"]["free_gb"] > 0
    assert "room --site laptop --least-gb 1.0" in " ".join(open_run(run_id).request.words)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        headrace("room", "--least-gb", "1e9")
    assert "GB are free" in failed.value.stdout + failed.value.stderr


@pytest.mark.parametrize(
    ("module", "told"),
    [("raise ImportError('no torch')", "ImportError: no torch"), ("", "has no attribute 'add'")],
)
def test_a_package_that_cannot_be_loaded_is_named(site_packages: Path, module: str, told: str):
    install(site_packages, "broken_addon", module, "[headrace.commands]\nx = broken_addon:add\n")
    with pytest.raises(UserError, match=told) as caught:
        load_group("headrace.commands")
    assert "'x' of headrace.commands cannot be loaded" in str(caught.value)
    assert "pip uninstall broken_addon" in str(caught.value)


def test_commands_of_a_package_are_a_mapping_and_replace_none(site_packages: Path):
    module = (
        "from headrace.cli.command_group import Command\n"
        "GOOD = {'runs': Command('Look', 'gone:gone', 'Replaced.')}\n"
        "def register(app): ...\n"
    )
    entry = "[headrace.commands]\nx = addon:"
    install(site_packages, "addon", module, f"{entry}GOOD\n")
    assert "Replaced." not in headrace("--help")
    (site_packages / "addon-1.0.dist-info" / "entry_points.txt").write_text(f"{entry}register\n")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        headrace("--help")
    assert "'x' of headrace.commands is a function" in failed.value.stderr
    headrace("runs")


def test_a_kind_of_step_needs_no_other_package_to_be_whole(site_packages: Path):
    install(site_packages, "broken_addon", "import gone", "[headrace.steps]\nx = broken_addon:X\n")
    assert step_kind("probe").options is ProbeOptions
    with pytest.raises(UserError, match=r"'x' of headrace[.]steps cannot be loaded"):
        step_kind("x")


def test_a_page_and_a_column(site_packages: Path, headrace_home: Path):
    section = "A page, and a column of the list of runs"
    points = entry_points_of(section)
    install(site_packages, "headrace_pace", blocks(section, "python"), points)
    (site_packages / "headrace_pace.js").write_text(blocks(section, "javascript"))
    bad = (
        "from headrace_pages.added import Page\nBAD = Page(columns={'Bad': lambda run: run.gone})\n"
    )
    install(site_packages, "bad_page", bad, "[headrace.pages]\nzbad = bad_page:BAD\n")
    run = make_run()
    client = TestClient(app)
    assert "[&quot;pace&quot;, &quot;Pace&quot;]" in client.get("/").text
    assert client.get("/pace/").status_code == 200
    assert client.get("/added/pace.js").text == blocks(section, "javascript")
    assert client.get("/added/zbad.js").status_code == client.get("/zbad2/").status_code == 404
    assert client.get("/data/added?name=pace").status_code == 401
    found = runs_with_columns()
    assert found.columns == ("Hours", "Bad")
    hours, nothing = found.cells[run.run_id]
    assert (hours.value, hours.why, nothing.value) == (None, "", None)
    assert "no attribute 'gone'" in nothing.why
    began_at = open_ledger().run(run.run_id).created_at
    open_ledger().finish_run(run.run_id, StepState.CANCELLED, began_at + 7200.0)
    assert runs_with_columns().cells[run.run_id][0].value == "2.0 h"
    answer = added()["pace"].answer
    assert answer is not None
    assert answer(None).model_dump() == {"runs": {"digits": 1}}
    assert answer(("elsewhere",)).model_dump() == {"runs": {}}
