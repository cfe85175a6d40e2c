"""Damaged files of every format end in right data, quarantine, a named error or a named fault.

`HEADRACE_DAMAGED_FILES` sets how many files of each format are tried.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from headrace.steps.mailbox import fault_of
from support.damaged_inputs import FORMS

NUM_FILES = int(os.environ.get("HEADRACE_DAMAGED_FILES", "30"))
TESTS = Path(__file__).parents[3]


def survey(form: str, num_files: int, folder: Path) -> dict[str, list[str]]:
    """What became of damaged files, by outcome; after a crash the next file is begun."""
    found: dict[str, list[str]] = defaultdict(list)
    first = 0
    while first < num_files:
        command = [sys.executable, "-m", "support.damaged_inputs", form, str(first)]
        done = subprocess.run(
            [*command, str(num_files), str(folder / str(first))],
            cwd=TESTS, capture_output=True, text=True, check=False,
        )  # fmt: skip
        number = first
        for line in done.stdout.splitlines():
            number, outcome, more = (
                line.split(" ", 2) if line.count(" ") > 1 else (*line.split(), "")
            )
            if outcome != "begun":
                found[outcome].append(f"{number}: {json.loads(more)}")
        if done.returncode > 0:
            found["traceback"].append(f"{number}: {done.stderr[-2000:]}")
        elif done.returncode < 0:
            notes = (folder / str(first) / str(number)).rglob("*reading")
            faults = [fault for note in notes if (fault := fault_of(note, done.returncode))]
            ending = "fault" if faults else f"signal {-done.returncode}"
            found[ending].append(f"{number}: {faults} {done.stderr[-300:]}")
        first = int(number) + 1
    return found


@pytest.mark.parametrize("form", FORMS)
def test_damaged_files(form: str, tmp_path: Path) -> None:
    found = survey(form, NUM_FILES, tmp_path)
    print({outcome: len(each) for outcome, each in found.items()})
    allowed = {"same", "error", "fault"}
    assert {key: each[:5] for key, each in found.items() if key not in allowed} == {}
    assert found["same"]
    assert found["error"] or form in ("npy", "npz", "wav")  # these are in quarantine
