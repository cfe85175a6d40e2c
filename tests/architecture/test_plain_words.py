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
    "deploy": 1,
    "docs": 6,
    "headrace": 4,
    "headrace/batch": 9,
    "headrace/cli": 1,
    "headrace/clusters": 1,
    "headrace/data": 1,
    "headrace/files": 1,
    "headrace/ledger": 1,
    "headrace/packing": 5,
    "headrace/processes": 1,
    "headrace/recipe": 7,
    "headrace/runs": 1,
    "headrace/site_check": 2,
    "headrace/staging": 2,
    "headrace/status": 1,
    "headrace/steps": 1,
    "headrace/suites": 1,
    "headrace/training": 1,
    "headrace_airflow": 2,
    "headrace_bench": 3,
    "headrace_ec2": 2,
    "headrace_foresight": 4,
    "headrace_pages": 3,
    "headrace_probes": 4,
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
