"""Files and functions stay short, rooms within their budgets; ruff checks the rest."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from support.sources import product_modules, relative

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60

BUDGETS = {
    "headrace": 880,
    "headrace/batch": 2550,
    "headrace/checkpoints": 930,
    "headrace/cli": 4890,
    "headrace/clusters": 6070,
    "headrace/data": 2410,
    "headrace/evaluation": 3040,
    "headrace/examples": 150,
    "headrace/execution": 1240,
    "headrace/fields": 730,
    "headrace/files": 1750,
    "headrace/leases": 420,
    "headrace/ledger": 2180,
    "headrace/objects": 1510,
    "headrace/packing": 6930,
    "headrace/processes": 1390,
    "headrace/recipe": 5400,
    "headrace/report": 130,
    "headrace/runs": 3240,
    "headrace/shards": 2810,
    "headrace/site_check": 690,
    "headrace/staging": 1990,
    "headrace/status": 2340,
    "headrace/steps": 1670,
    "headrace/suites": 4600,
    "headrace/training": 5140,
    "headrace_airflow": 2540,
    "headrace_bench": 4810,
    "headrace_ec2": 2100,
    "headrace_foresight": 3630,
    "headrace_pages": 1780,
    "headrace_probes": 2280,
    "headrace_queues": 800,
}
"""Most lines of Python of each room: what goes over takes something out, or is decided."""


def test_no_file_is_too_long():
    lengths = {
        str(relative(path)): len(path.read_text().splitlines()) for path in product_modules()
    }
    too_long = {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}
    assert too_long == {}


def test_no_room_is_over_its_budget():
    lines = Counter[str]()
    for path in product_modules():
        folder, *rest = relative(path).parts
        if folder != "dags":
            room = rest[0] if rest[0] != "headrace" or len(rest) == 2 else "/".join(rest[:2])
            lines[room] += len(path.read_text().splitlines())
    assert lines.keys() == BUDGETS.keys()
    assert {room: num for room, num in lines.items() if num > BUDGETS[room]} == {}


def test_no_function_is_too_long():
    assert list(long_functions()) == []


def long_functions() -> Iterator[str]:
    """Functions over the limit, as `file:line name (lines)`."""
    for path in product_modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if num_lines > MAX_FUNCTION_LINES:
                    yield f"{relative(path)}:{node.lineno} {node.name} ({num_lines})"
