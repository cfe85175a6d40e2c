"""What Slurm's books say of the jobs that one user may have; text to records.

Source: https://slurm.schedmd.com/sacctmgr.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.leases.batch.limits import Limit

_ASSOCIATION = "DefaultAccount,Account,MaxSubmit,DefaultQOS,QOS"
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
