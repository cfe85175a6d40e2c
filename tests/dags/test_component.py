"""How a component of Airflow begins and ends: what garbage is looked for, all is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_AIRFLOW = """
import atexit, gc, os, sys

class Large:
    def __del__(self):
        os.write(1, b"collected,")

kept = Large()
kept.itself = kept

def main():
    kind = "collected" if gc.get_freeze_count() < 10_000 else "kept"
    print("imports", kind, "others", "collected" if gc.isenabled() else "kept", end=",")
    atexit.register(lambda: print("closed", end=","))
    if os.fork() == 0:
        return
    print("child", os.waitstatus_to_exitcode(os.wait()[1]), end=",")
    if sys.argv[1:] == ["raise"]:
        raise ValueError("no such component")
    if sys.argv[1:]:
        sys.exit(int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1])
"""


@pytest.mark.parametrize(
    ("argument", "code", "told"),
    [
        ([], 0, ""),
        (["3"], 3, ""),
        (["why"], 1, "why"),
        (["raise"], 1, "no such component"),
    ],
)
def test_a_component_ends_with_its_code_and_without_a_last_collection(
    tmp_path: Path, argument: list[str], code: int, told: str
) -> None:
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").touch()
    (tmp_path / "airflow" / "__main__.py").write_text(_AIRFLOW)
    done = subprocess.run(
        [sys.executable, "-m", "headrace_airflow.component", *argument],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert told in done.stderr
    begun = "imports kept others collected,"
    assert done.stdout == f"{begun}closed,child 0,closed,"


_PARSED = """
import runpy, sys

from headrace_airflow.component import preload
from headrace_airflow.service import dags_folder

preload([sys.argv[1], "--flag"])
before = set(sys.modules)
for file in dags_folder().glob("*.py"):
    runpy.run_path(str(file))
more = {name for name in sys.modules if name.split(".")[0] in ("headrace", "headrace_airflow")}
print(sorted(more - before))
"""


@pytest.mark.usefixtures("headrace_home")
@pytest.mark.parametrize("component", ["scheduler", "dag-processor"])
def test_the_children_of_a_component_import_no_more_of_headrace(component: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PARSED, component], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
