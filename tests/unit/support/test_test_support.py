"""What the tests stand on is tested itself: waiting, leftovers, skips that must not be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.airflow_service import AirflowService
from support.documents import Reader, blocks, first_missing
from support.ec2_sim import Ec2Sim
from support.leftovers import MARK, describe, last_will, started_by
from support.s3_servers import S3Server
from support.scheduling import LONG, SharedAirflowScheduling, place
from support.sources import ROOT
from support.waiting import wait_until

TESTS = Path(__file__).parents[2]


def test_waiting_gives_the_value_that_ended_it():
    answers = iter([None, "", "there"])
    assert wait_until(lambda: next(answers), 60, "an answer", poll_s=0.001) == "there"


def test_waiting_in_vain_says_for_what_and_what_was_seen():
    with pytest.raises(AssertionError, match=r"Waited 0 s for a miracle; last seen: \[\]"):
        wait_until(list, 0, "a miracle")


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


def test_the_statement_is_not_run_otherwise(tmp_path: Path):
    done = tmp_path / "done"
    with last_will(f"open({str(done)!r}, 'w').close()", os.environ):
        pass
    assert not done.exists()


def test_an_instance_that_comes_up_while_all_ends_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    instance = SimpleNamespace(
        id="i-1", _state=SimpleNamespace(name="running"), user_data=b"sleep 600", get_tags=list
    )
    instance.terminate = lambda: None  # its user data is being started already
    monkeypatch.setattr(Ec2Sim, "instances", [instance])
    comes_up, boot, started = threading.Event(), Ec2Sim._boot, []

    def boot_late(sim: Ec2Sim, instance: SimpleNamespace) -> None:
        comes_up.set()
        assert sim._stop.wait(60)
        boot(sim, instance)
        started.append(sim._booted[instance.id])

    monkeypatch.setattr(Ec2Sim, "_boot", boot_late)
    sim = Ec2Sim(S3Server(name="none", endpoint_url=""), tmp_path, boot_s=0.0)
    serving = threading.Thread(target=sim.serve)
    serving.start()
    assert comes_up.wait(60)
    sim.stop()
    serving.join()
    sim.imds.server_close()
    (process,) = started
    ended = process.poll() is not None
    process.kill()
    process.wait()
    assert ended


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
