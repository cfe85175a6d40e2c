"""One line on how a step stands, for the task's log."""

from __future__ import annotations

from headrace.steps.records import StepStatus

EVERY_S = 10.0
"""A line on a step at least this often."""

WAITING_EVERY_S = 60.0
"""A line on an unchanged wait for machines at least this often: it may last for days."""


def describe(status: StepStatus) -> str:
    """How a step stands, in one line.

    Args:
        status: As read from the step's folder.

    Returns:
        Such as `running, fit: 312/900 steps (35 %), 41.3 steps/s, 14 s left, loss 0.231`.
    """
    progress = status.progress
    words = [status.state.value + (f", {progress.phase}" if progress.phase else "")]
    if progress.total:
        share = progress.done / progress.total
        words[0] += f": {progress.done:g}/{progress.total:g} {progress.unit} ({share:.0%})"
    elif progress.done:
        words[0] += f": {progress.done:g} {progress.unit}"
    if status.rate:
        words.append(f"{status.rate:.3g} {progress.unit}/s")
    if status.eta_s is not None:
        words.append(f"{status.eta_s:.0f} s left")
    words += [f"{name} {value:.4g}" for name, value in sorted(status.metrics.items())]
    return ", ".join(words)


class ProgressLines:
    """Decides when there is something to say: something new, or ten seconds gone by.

    Args:
        every_s: A line at least this often.
    """

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._told: object = None
        self._told_at = 0.0

    def line(self, status: StepStatus, now: float, waits_for: str = "") -> str | None:
        """The line on a step to write now, None when it is not time yet.

        Args:
            status: How the step stands.
            now: A clock in seconds.
            waits_for: What its lease waits for in a queue.
        """
        if waits_for:
            return self.waiting(waits_for, now)
        subject = (status.state.value, status.progress.phase)
        return describe(status) if self._is_due(subject, now) else None

    def waiting(self, waits_for: str, now: float) -> str | None:
        """The line on a wait to write now, None when it is not time yet."""
        return f"Waiting: {waits_for}" if self._is_due(waits_for, now) else None

    def _is_due(self, subject: object, now: float) -> bool:
        if subject == self._told and now - self._told_at < self._every_s:
            return False
        self._told, self._told_at = subject, now
        return True
