"""Words that make a sentence hard to read: their number in each room only falls.

Not counted: decision records, which keep their words, and what stands between quotes.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from support.sources import texts

DISCOURAGED = re.compile(
    r"\b(?:told|tells|nobody|somebody|whoever|such an?|that one|is no|gives whether|of which|seen"
    r"|by turns|now and then|goes without|asked for it|heeds?|minded|settle[sd]?)\b",
    re.IGNORECASE,
)
# inside code, a text between quotes is a message: it counts
QUOTED = re.compile(r"`[^`\n]*`|“[^”\n]*”|\"[^\"\n]*\"")

MOST = {
    "dags": 6,
    "deploy": 14,
    "docs": 319,
    "examples": 6,
    "headrace": 18,
    "headrace/batch": 136,
    "headrace/checkpoints": 0,
    "headrace/cli": 154,
    "headrace/clusters": 173,
    "headrace/data": 29,
    "headrace/evaluation": 9,
    "headrace/execution": 34,
    "headrace/fields": 11,
    "headrace/files": 73,
    "headrace/leases": 12,
    "headrace/ledger": 39,
    "headrace/objects": 17,
    "headrace/packing": 78,
    "headrace/processes": 40,
    "headrace/recipe": 7,
    "headrace/report": 2,
    "headrace/runs": 1,
    "headrace/shards": 12,
    "headrace/site_check": 31,
    "headrace/staging": 20,
    "headrace/status": 91,
    "headrace/steps": 35,
    "headrace/suites": 1,
    "headrace/training": 1,
    "headrace_airflow": 56,
    "headrace_bench": 87,
    "headrace_ec2": 150,
    "headrace_foresight": 118,
    "headrace_pages": 255,
    "headrace_probes": 34,
    "headrace_queues": 23,
    "scripts": 8,
    "top": 80,
}
"""Most discouraged words of each room."""


def test_discouraged_words_become_fewer():
    found = Counter[str]()
    for path, text in texts():
        if room := _room(path):
            prose = QUOTED.sub("", text) if path.suffix == ".md" else text
            found[room] += len(DISCOURAGED.findall(prose))
    assert {room: num for room, num in found.items() if num > MOST.get(room, 0)} == {}


def _room(path: Path) -> str:
    top, *rest = path.parts
    if not rest:
        return "top"
    if top in {"pipelines", "plugins"}:
        is_engine = rest[0] == "headrace" and len(rest) > 2
        return "/".join(rest[:2]) if is_engine else rest[0]
    if top in {"dags", "examples", "deploy", "scripts"}:
        return top
    if top == "docs" and rest[:2] != ["explanations", "decisions"]:
        return "docs"
    return ""
