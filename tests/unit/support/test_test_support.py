"""What the tests stand on is tested itself: waiting, leftovers, skips that must not be."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.leftovers import MARK, describe, started_by
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
        [sys.executable, "-m", "pytest", "-q", "-p", "support.strict_skips", "test_it.py"],
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
