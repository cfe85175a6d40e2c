"""Names of nodes in Slurm's short form; pure.

Source: https://slurm.schedmd.com/scontrol.html, "show hostnames"
"""

from __future__ import annotations

import re

_NONE = ("None assigned", "None", "Unknown", "(null)")


def node_names(text: str) -> list[str]:
    """Names of nodes from Slurm's short form, as in `a1,gpu[01-03,7]`; empty for words."""
    if not text or text in _NONE:
        return []
    found = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?[^,\[]*", text):
        head, bracket, rest = part.partition("[")
        inner, _, tail = rest.partition("]")
        found += [f"{head}{each}{tail}" for each in _numbers(inner)] if bracket else [head]
    return found


def _numbers(text: str) -> list[str]:
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        found += [f"{number:0{len(first)}d}" for number in numbers]
    return found
