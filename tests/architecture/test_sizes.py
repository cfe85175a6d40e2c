"""Files stay short, rooms within their budgets."""

from __future__ import annotations

from collections import Counter

from support.sources import product_modules, relative

MAX_FILE_LINES = 450

BUDGETS = {
    "headrace": 1889,
    "headrace/batch": 2471,
    "headrace/checkpoints": 949,
    "headrace/cleanup": 395,
    "headrace/cli": 5337,
    "headrace/clusters": 6173,
    "headrace/data": 3077,
    "headrace/evaluation": 3021,
    "headrace/examples": 141,
    "headrace/execution": 1656,
    "headrace/fields": 1124,
    "headrace/files": 1927,
    "headrace/leases": 405,
    "headrace/ledger": 2509,
    "headrace/objects": 1556,
    "headrace/packing": 9168,
    "headrace/processes": 1365,
    "headrace/recipe": 6292,
    "headrace/report": 122,
    "headrace/runs": 4031,
    "headrace/shards": 2795,
    "headrace/site_check": 664,
    "headrace/staging": 1951,
    "headrace/status": 2491,
    "headrace/steps": 1547,
    "headrace/suites": 4524,
    "headrace/training": 5481,
    "headrace_airflow": 2614,
    "headrace_bench": 4829,
    "headrace_ec2": 1977,
    "headrace_foresight": 3916,
    "headrace_pages": 1782,
    "headrace_probes": 2209,
    "headrace_queues": 802,
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
