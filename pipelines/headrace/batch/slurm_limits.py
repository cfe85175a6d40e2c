"""What Slurm's books say of the jobs that one user may have; text to records.

Sources: https://slurm.schedmd.com/sacctmgr.html, sinfo.html
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from headrace.batch.limits import Limit
from headrace.batch.slurm_facts import parse_limit
from headrace.errors import BatchError

logger = logging.getLogger(__name__)

_ASSOCIATION = "DefaultAccount,Account,MaxSubmit,DefaultQOS,QOS"
_LONGEST = "DefaultAccount,Account,MaxWall,DefaultQOS,QOS"
_QOS = "Name,MaxSubmitPU"

Ask = Callable[[Sequence[str]], str]
"""Runs a command of Slurm and gives its output."""


def told_limits(ask: Ask, account: str | None, qos: str | None) -> tuple[Limit, ...]:
    """Limits on submitted jobs of the user's association and of the QOS.

    `MaxJobs` is left to Slurm, which lets jobs wait for it. Limits that users share cannot be kept
    by one of them: Slurm refuses the job, and it is submitted later.

    Args:
        ask: Runs a command.
        account: Account that pays; None for the user's default.
        qos: Quality of service; None for the association's default.

    Raises:
        BatchError: The books do not answer.
    """
    user = ask(("id", "-un")).strip()
    show = ("sacctmgr", "--noheader", "--parsable2", "show")
    told = ask((*show, "user", "withassoc", f"name={user}", f"format={_ASSOCIATION}"))
    limits, default_qos = parse_association(told, account)
    asked_qos = qos or default_qos
    if not asked_qos:
        return limits
    return (*limits, *parse_qos(ask((*show, "qos", f"name={asked_qos}", f"format={_QOS}"))))


def longest_job_s(
    ask: Ask, partition: str | None, account: str | None, qos: str | None
) -> float | None:
    """Longest time that Slurm gives a job, seconds; None for no limit.

    The least of the partition's, the association's and the QOS's. Books that are not kept limit
    nothing.

    Args:
        ask: Runs a command.
        partition: Partition, or several with commas; None for the default one.
        account: Account that pays; None for the user's default.
        qos: Quality of service; None for the association's default.

    Raises:
        BatchError: Slurm does not answer.
    """
    told = ask(("sinfo", "--noheader", "--format=%P|%l"))
    limits = parse_partition_limits(told, partition)
    show = ("sacctmgr", "--noheader", "--parsable2", "show")
    try:
        user = ask(("id", "-un")).strip()
        books = ask((*show, "user", "withassoc", f"name={user}", f"format={_LONGEST}"))
        mine, default_qos = parse_longest(books, account)
        asked_qos = qos or default_qos
        if asked_qos:
            told = ask((*show, "qos", f"name={asked_qos}", "format=MaxWall"))
            mine = (*mine, *map(parse_limit, told.split()))
    except BatchError as error:
        logger.info("%s", error.what)
        mine = ()
    return min((each for each in (*limits, *mine) if each is not None), default=None)


def parse_partition_limits(text: str, partition: str | None) -> tuple[float | None, ...]:
    """Longest times of partitions from `sinfo`, seconds; None for no limit.

    Args:
        text: Its output.
        partition: Partition, or several with commas; None for the default one.
    """
    rows = [line.rsplit("|", 1) for line in text.splitlines() if "|" in line]
    names = partition.split(",") if partition else []
    return tuple(
        parse_limit(limit)
        for name, limit in rows
        if (name.rstrip("*") in names if names else name.endswith("*"))
    )


def parse_longest(text: str, account: str | None) -> tuple[tuple[float | None, ...], str]:
    """Longest times and default QOS from `sacctmgr show user withassoc`; see `parse_association`.

    Args:
        text: Its output.
        account: The account that counts; None for the user's default.
    """
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 4]
    mine = [row for row in rows if row[1] == (account or row[0])]
    limits = tuple(parse_limit(longest) for _, _, longest, *_ in mine if longest)
    return limits, next((_default_qos(*row[3:]) for row in mine), "")


def parse_association(text: str, account: str | None) -> tuple[tuple[Limit, ...], str]:
    """Limits and default QOS from `sacctmgr show user withassoc`.

    Args:
        text: Its output.
        account: The account that counts; None for the user's default.
    """
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 4]
    mine = [row for row in rows if row[1] == (account or row[0])]
    limits = (
        Limit(most=int(most), whose=f"Slurm's (MaxSubmitJobs of account {name})")
        for _, name, most, *_ in mine
        if most.isdigit()
    )
    return tuple(limits), next((_default_qos(*row[3:]) for row in mine), "")


def parse_qos(text: str) -> tuple[Limit, ...]:
    """Limits from `sacctmgr show qos`."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 1]
    return tuple(
        Limit(most=int(most), whose=f"Slurm's (MaxSubmitJobsPerUser of QOS {name})")
        for name, most in rows
        if most.isdigit()
    )


def _default_qos(default: str, allowed: str) -> str:
    """QOS of a job that names none; "" when that is not told."""
    names = allowed.split(",")
    return default or (names[0] if len(names) == 1 else "normal" if "normal" in names else "")
