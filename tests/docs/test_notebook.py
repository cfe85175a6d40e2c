"""The notebook of the how-to runs, cell by cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.examples.digits import export_digits

NOTEBOOK = Path(__file__).parents[2] / "docs/how-to/use-from-python.ipynb"
SHOWN = """
import sys
for cell in sys.stdin.read().split(chr(0)):
    *lines, last = cell.rstrip().splitlines()
    exec("\\n".join(lines), globals())
    value = eval(last, globals()) if not last.startswith("print") else exec(last, globals())
    print("cell:", type(value).__name__, value)
"""

pytestmark = pytest.mark.slow


def test_the_notebook_runs(tmp_path: Path) -> None:
    cells = [
        each for each in json.loads(NOTEBOOK.read_text())["cells"] if each["cell_type"] == "code"
    ]
    code = chr(0).join("".join(cell["source"]) for cell in cells)
    environment = {**os.environ, "HEADRACE_HOME": str(tmp_path / "home")}
    export_digits(tmp_path / "home" / "examples" / "digits")
    done = subprocess.run(
        [sys.executable, "-c", SHOWN], input=code, cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cell:") == len(cells)
    assert "accuracy" in done.stdout
    assert "data.global_batch_size" in done.stdout


FAILING = """
import headrace
try:
    headrace.run({"name": "x", "model": {"_target_": "no_such_package.Model"}})
except headrace.errors.UserError as error:
    print("refused:", error)
try:
    headrace.nothing
except AttributeError as error:
    print("unknown:", error)
"""


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    environment = {**os.environ, "HEADRACE_HOME": str(tmp_path / "home")}
    code = FAILING.replace("import headrace\n", "import headrace, headrace.errors\n", 1)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "refused:" in done.stdout, done.stderr
    assert "unknown: module 'headrace' has no attribute 'nothing'" in done.stdout
