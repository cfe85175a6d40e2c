"""Files stay short, rooms within their budgets."""

from __future__ import annotations

from collections import Counter

from support.sources import product_modules, relative

MAX_FILE_LINES = 450

BUDGETS = {
    "headrace": 1888,
    "headrace/batch": 2413,
    "headrace/checkpoints": 927,
    "headrace/cleanup": 443,
    "headrace/cli": 5527,
    "headrace/clusters": 6062,
    "headrace/data": 3044,
    "headrace/evaluation": 2957,
    "headrace/examples": 141,
    "headrace/execution": 1716,
    "headrace/fields": 1097,
    "headrace/files": 1907,
    "headrace/leases": 382,
    "headrace/ledger": 2593,
    "headrace/multi_site": 1308,
    "headrace/objects": 1511,
    "headrace/packing": 8977,
    "headrace/processes": 1360,
    "headrace/recipe": 6205,
    "headrace/report": 122,
    "headrace/runs": 4632,
    "headrace/shards": 2749,
    "headrace/site_check": 662,
    "headrace/staging": 1916,
    "headrace/status": 2514,
    "headrace/steps": 1538,
    "headrace/suites": 5275,
    "headrace/training": 5413,
    "headrace_airflow": 2675,
    "headrace_bench": 4829,
    "headrace_ec2": 1943,
    "headrace_foresight": 4555,
    "headrace_pages": 1922,
    "headrace_probes": 2192,
    "headrace_queues": 745,
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
