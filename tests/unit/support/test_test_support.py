"""What the tests stand on: leftovers, skips, the order of files, pages, the chaos campaign."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from chaos.campaign.checks import Result, differences, left_over
from chaos.campaign.trials import TARGETS, draw
from headrace.files.layout import SiteFolder
from headrace.ledger.ledger import Ledger
from headrace.states import StepState
from support.airflow_service import AirflowService
from support.documents import Reader, blocks, first_missing
from support.ledger_rows import run_row
from support.leftovers import MARK, describe, started_by
from support.scheduling import LONG, SharedAirflowScheduling, place
from support.sources import ROOT
from support.waiting import wait_until

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("how", ["mark", "folder", "argument"])
def test_a_process_of_the_test_is_found_by_its_mark_and_by_its_folder(how, tmp_path):
    environment = dict(os.environ)
    environment |= {"mark": {MARK: "me"}, "folder": {"HEADRACE_HOME": str(tmp_path / "home")}}.get(
        how, {}
    )
    extra = [f"{tmp_path}/leases/x"] if how == "argument" else []
    child = subprocess.Popen(
        [sys.executable, "-c", "input()", *extra], stdin=subprocess.PIPE, env=environment
    )
    try:
        found = wait_until(lambda: started_by("me", tmp_path), 60, "the child to be found")
        assert [process.pid for process in found] == [child.pid]
        assert f"{child.pid} (parent {os.getpid()}" in describe(found)
    finally:
        child.communicate()
    assert started_by("me", tmp_path) == []


@pytest.mark.parametrize(
    ("ci", "summary"), [("true", "1 failed, 1 xfailed, 2 errors"), ("", "3 skipped, 1 xfailed")]
)
def test_skips_are_failures_when_all_tests_must_run(ci, summary, tmp_path):
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""
        import pytest
        def test_skips(): pytest.skip("no such program")
        @pytest.mark.skipif(True, reason="not here")
        def test_is_skipped(): ...
        @pytest.fixture
        def server(): pytest.skip("no server")
        def test_needs(server): ...
        @pytest.mark.xfail(raises=ZeroDivisionError)
        def test_is_known_to_fail(): 1 / 0
        """)
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "support.session_rules", "test_it.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "CI": ci,
            "PYTHONPATH": str(TESTS),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert summary in done.stdout
    assert ("no such program" in done.stdout) == bool(ci)
    assert ("CONTRIBUTING.md" in done.stdout) == bool(ci)


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/chaos/airflow/test_kills.py::test_x[a/airflow/b]", "tests/chaos/airflow"),
        ("tests/integration/airflow/test_trigger_form.py::test_x", "tests/integration/airflow"),
        ("tests/integration/test_shell.py::test_x[airflow]", "tests/integration/test_shell.py"),
        ("tests/unit/airflow.py::TestX::test_x", "tests/unit/airflow.py"),
        ("tests/contract/test_a.py::TestX::test_x", "tests/contract/test_a.py::TestX"),
        ("tests/contract/test_a.py::test_x[a]", "tests/contract/test_a.py"),
    ],
)
def test_groups(nodeid: str, group: str) -> None:
    assert SharedAirflowScheduling._split_scope(None, nodeid) == group  # type: ignore[arg-type]


def test_what_asks_for_the_shared_airflow_lies_in_such_a_folder() -> None:
    asking = {
        str(file.relative_to(ROOT))
        for folder in ("integration", "chaos", "docs", "benchmarks", "dags", "contract", "unit")
        for file in (ROOT / "tests" / folder).rglob("test_*.py")
        if f"airflow_service: {AirflowService.__name__}" in file.read_text()
    }
    assert asking
    assert [file for file in asking if "/airflow/" not in file] == []


def test_the_order_of_files() -> None:
    """Those that share an Airflow come before any other whole job, and long ones next."""
    files = [
        "tests/architecture/test_layers.py",
        "tests/contract/test_backend_contract.py",
        "tests/unit/airflow.py",
        "tests/dags/test_dag_files.py",
        "tests/chaos/airflow/test_kills.py",
        "tests/integration/airflow/test_trigger_form.py",
        *LONG,
        "tests/chaos/slurm/test_jobs.py",
        "tests/docs/test_links.py",
        "tests/integration/test_setup_script.py",
        "elsewhere/test_it.py",
    ]
    mixed = dict.fromkeys(reversed(files))
    assert sorted(mixed, key=place)[:-2] == files[:-2]
    assert [file for file in LONG if not (ROOT / file).is_file()] == []


_KILLED_WITHIN = """
import os, signal, sys
from support.leftovers import last_will
with last_will(sys.argv[1], os.environ):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_statement_is_run_after_a_kill(tmp_path: Path):
    done = tmp_path / "done"
    statement = f"open({str(done)!r}, 'w').close()"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", _KILLED_WITHIN, statement]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    wait_until(done.exists, 90, "the statement to be run")


PAGE = """
Text, and a block that nobody runs:

```console
$ false
```

<!-- file: ~/notes/a.txt -->
```text
one
two
```

<!-- test -->
```console
$ cd notes
$ cat a.txt
one
```

<!-- test: exit 3 -->

```console
$ echo in $(basename $PWD); exit 3
in …
```
"""


@pytest.fixture
def page(tmp_path):
    return tmp_path / "page.md"


def follow(page, text):
    page.write_text(text)
    reader = Reader(home=page.parent)
    for block in blocks(page):
        reader.follow(block)
    return reader


def test_a_right_page_is_followed_to_its_end(page):
    assert follow(page, PAGE).folder == page.parent / "notes"
    assert [(block.do, block.how) for block in blocks(page)] == [
        ("file", "~/notes/a.txt"),
        ("test", ""),
        ("test", "exit 3"),
    ]


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("exit 3\nin …", "exit 0\nin …", "exit code 0, not 3, line 21"),
        ("$ cat a.txt\none", "$ cat a.txt\nthree", "the output is not what line 14"),
        ("$ cd notes", "$ cd nowhere", "exit code 1, not 0, line 14"),
    ],
)
def test_a_wrong_page_is_complained_about(right, wrong, complaint, page):
    assert right in PAGE
    with pytest.raises(AssertionError, match=complaint):
        follow(page, PAGE.replace(right, wrong))


@pytest.mark.parametrize(
    ("lines", "output", "missing"),
    [
        (["a  b", "c"], "x a b\ny\nc\n", None),
        (["a b"], "a    b", None),
        (["a b"], "ab", "a b"),
        (["a", "b"], "b\na\n", "b"),
        (["a … d"], "a b\nc d", None),
        (["a…d"], "ad", None),
        (["a … d", "e"], "a  d\ne d", None),
        (["a … d"], "a d", "a … d"),  # two gaps, of which there is one
        (["(1+1) …", "[x]"], "(1+1) is\n[x]", None),
        ([*["… 1 … 2 … 3 …"] * 8, "end"], "0 1 2 3 4\n" * 3000, "end"),  # without going back
    ],
)
def test_lines_come_in_order(lines, output, missing):
    assert first_missing(lines, output) == missing


RESULT = Result(
    dataset="f",
    weights="w",
    steps=10,
    train_metrics={"loss": 0.5},
    test_metrics={"accuracy": 0.9},
    samples=(7, 7, 7),
    files=frozenset({"runs/RUN/report/report.html", "tier/x"}),
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"files": RESULT.files | {"runs/RUN/x"}}, []),
        ({"files": RESULT.files - {"tier/x"}}, []),
        ({"files": frozenset()}, ["file runs/RUN/report/report.html is missing"]),
        ({"weights": "v"}, ["weights: v, not w"]),
        ({"samples": (7, 8, 7)}, ["samples: (7, 8, 7), not (7, 7, 7)"]),
        (
            {"test_metrics": {"accuracy": 0.8}, "steps": 9},
            ["steps: 9, not 10", "test_metrics: {'accuracy': 0.8}, not {'accuracy': 0.9}"],
        ),
    ],
)
def test_differences_of_results(changes: dict[str, object], told: list[str]):
    assert list(differences(RESULT.model_copy(update=changes), RESULT)) == told


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with an empty ledger and no lease."""
    Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    SiteFolder(tmp_path).leases.mkdir()
    return tmp_path


def left_in(home: Path, memory: Sequence[Path] = ()) -> list[str]:
    run = run_row(folder=str(home / "runs" / "run-1"), state=StepState.SUCCEEDED)
    return list(left_over(home, run, RESULT, memory))


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_files_that_the_reference_has_are_not_left_over(home: Path):
    touch(home / "runs" / "run-1" / "report" / "report.html")
    assert left_in(home) == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tier/datasets/.half", "file tier/datasets/.half"),
        ("runs/run-1/report/.x", "file runs/RUN/report/.x"),
        ("leases/l/.job.json.0123456789ab", "temporary leases/l/.job.json.0123456789ab"),
        ("leases/l/steps/.0123456789abcdef0123456789abcdef", "temporary leases/l/steps/.0123"),
        ("leases/l/host.json", "disk: lease l is not closed, or not in the ledger"),
    ],
)
def test_what_else_is_there_is_left_over(home: Path, name: str, told: str):
    touch(home / name)
    assert [each for each in left_in(home) if each.startswith(told)]


def test_shared_memory_that_is_still_there_is_left_over(home: Path):
    there = home / "sem.mp-1"
    there.touch()
    found = left_in(home, [there, home / "sem.mp-2"])
    assert found == [f"memory {there}"]


LOST_AFTER_S = 8.0


def test_trials_disturb_every_process_of_every_phase_and_are_drawn_again_from_their_seed():
    trials = [draw(1, number, LOST_AFTER_S) for number in range(200)]
    assert trials == [draw(1, number, LOST_AFTER_S) for number in range(200)]
    assert {(trial.phase, trial.role) for trial in trials} == set(TARGETS)
    halts = [trial.halt_s for trial in trials if trial.signal == "stop"]
    assert min(halts) < LOST_AFTER_S / 2 < LOST_AFTER_S * 1.5 < max(halts)
    assert {trial.halt_s for trial in trials if trial.signal == "kill -9"} == {0.0}
    assert trials[1].earlier(2).moment == trials[1].moment / 4
