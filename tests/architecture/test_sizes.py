"""Files stay short, rooms within their budgets."""

from __future__ import annotations

from collections import Counter

from support.sources import product_modules, relative

MAX_FILE_LINES = 450

BUDGETS = {
    "headrace": 1096,
    "headrace/batch": 2480,
    "headrace/checkpoints": 890,
    "headrace/cli": 4856,
    "headrace/clusters": 5900,
    "headrace/data": 2408,
    "headrace/evaluation": 3000,
    "headrace/examples": 150,
    "headrace/execution": 1249,
    "headrace/fields": 970,
    "headrace/files": 1820,
    "headrace/leases": 406,
    "headrace/ledger": 2250,
    "headrace/objects": 1484,
    "headrace/packing": 8010,
    "headrace/processes": 1450,
    "headrace/recipe": 5870,
    "headrace/report": 122,
    "headrace/runs": 3420,
    "headrace/shards": 2769,
    "headrace/site_check": 670,
    "headrace/staging": 1962,
    "headrace/status": 2370,
    "headrace/steps": 1600,
    "headrace/suites": 4600,
    "headrace/training": 5010,
    "headrace_airflow": 2499,
    "headrace_bench": 4720,
    "headrace_ec2": 1980,
    "headrace_foresight": 3634,
    "headrace_pages": 1761,
    "headrace_probes": 2210,
    "headrace_queues": 770,
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
