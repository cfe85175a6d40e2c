"""How `sbatch` says no, and for how long; pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace.batch.commands import Answer
from headrace.batch.refusals import Refusals

REFUSALS = Refusals(
    system="Slurm",
    command="sbatch",
    unclear=re.compile(
        r"timed out|unable to contact|connection refused|connection reset"
        r"|zero bytes were transmitted|resource temporarily unavailable"
        r"|communication connection failure|unexpected message",
        re.IGNORECASE,
    ),
    full=re.compile(r"(Assoc|QOS)(Max|Grp)Submit\w*"),
    hint="`sinfo` lists partitions and nodes.",
)
"""How sbatch says no. Source of the reasons of a full queue: squeue.html, as above."""

_LASTING = re.compile(
    r"invalid|unrecognized|can ?not be satisfied"
    r"|more processors requested|more than|exceed|not permitted|access/permission denied"
    r"|unable to process configuration",
    re.IGNORECASE,
)
"""Refusals that waiting does not change, unlike of nodes that are down. Source: slurm_errno.c."""

_NO_SUCH_NODES = re.compile(r"configuration is not available")
"""Said of nodes that are too small, and of those that are drained."""


def is_lasting(answer: Answer, has_nodes_out: Callable[[], bool]) -> bool:
    """Whether `sbatch --test-only` refused a job for good.

    Args:
        answer: What it said.
        has_nodes_out: Whether nodes are down or drained; then what no other has may come back.
    """
    words = answer.error
    if answer.code in (0, None) or REFUSALS.full.search(words):
        return False
    if _NO_SUCH_NODES.search(words):
        return not has_nodes_out()
    return _LASTING.search(words) is not None


def told(answer: Answer) -> str:
    """Slurm's own words; the last line of its errors is the general one."""
    lines = [line.partition("error: ")[2] or line for line in answer.error.splitlines() if line]
    return "; ".join(dict.fromkeys(lines)) or f"exit code {answer.code}"
