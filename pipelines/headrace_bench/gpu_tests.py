"""The part of the GPU check that runs the checkout's tests marked `gpu`; a row for each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from headrace_bench.gpu_rows import GpuRow, confirmed, failed, skipped

TESTS = Path(__file__).parents[2] / "tests" / "gpu"
"""Test files; each runs in its own process."""

_LIMIT_S = 60.0


def tests(folder: Path) -> tuple[GpuRow, ...]:
    """Run the tests; pytest's output goes to standard output."""
    if not TESTS.is_dir():
        return (skipped("tests", "they are in a checkout, not in the installed package"),)
    files = sorted(TESTS.glob("test_*.py"))
    return tuple(row for file in files for row in run_tests(file, folder / f"{file.stem}.xml"))


def run_tests(file: Path, report: Path, limit_s: float = _LIMIT_S) -> Iterator[GpuRow]:
    """Run the tests marked `gpu` of a file; yield a row for each, and one if pytest itself fails.

    pytest writes its JUnit XML to `report`.
    """
    options = ("-q", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report}")
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    try:
        code = subprocess.run(
            command, cwd=TESTS.parents[1], check=False, timeout=limit_s
        ).returncode
        problem = "" if code in (0, 1) else f"pytest ends with {code}"
    except subprocess.TimeoutExpired:
        problem = f"ended by the time limit of {limit_s:g} s"
    if problem or not report.exists():
        yield failed(file.stem, problem or "pytest has no result")
        return
    yield from map(_row, ElementTree.parse(report).iter("testcase"))


def _row(case: ElementTree.Element) -> GpuRow:
    name = case.get("name", "").removeprefix("test_").replace("_", " ")
    for tag in ("failure", "error", "skipped"):
        found = case.find(tag)
        if found is not None:
            reason = " ".join(found.get("message", "").split())
            return (skipped if tag == "skipped" else failed)(name, reason)
    properties = [each.get("value", "") for each in case.iter("property")]
    return confirmed(name, "; ".join(properties), ())
