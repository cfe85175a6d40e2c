"""One line on how a step stands, for the task's log."""

from __future__ import annotations

from headrace.steps.records import StepStatus

EVERY_S = 10.0
"""A line at least this often."""


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
    """Decides when there is something to say: a new phase or state, or ten seconds gone by."""

    def __init__(self) -> None:
        self._told: tuple[str, str] | None = None
        self._told_at = 0.0

    def line(self, status: StepStatus, now: float) -> str | None:
        """The line to write now, None when it is not time yet.

        Args:
            status: How the step stands.
            now: A clock in seconds.
        """
        subject = (status.state.value, status.progress.phase)
        if subject == self._told and now - self._told_at < EVERY_S:
            return None
        self._told, self._told_at = subject, now
        return describe(status)
