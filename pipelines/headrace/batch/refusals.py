"""What a submit command that gave no job means: a refusal, a full queue, or nobody knows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.batch.commands import Answer
from headrace.errors import (
    AmbiguousSubmitError,
    HeadraceError,
    JobRefusedError,
    SubmitLimitError,
)


@dataclass(frozen=True, kw_only=True)
class Refusals:
    """How a batch system says no."""

    system: str
    """Name of the batch system, for users."""
    command: str
    """Its submit command."""
    unclear: re.Pattern[str]
    """Errors after which the job may be there all the same."""
    full: re.Pattern[str]
    """Refusals that go away when other jobs end."""
    hint: str
    """Command that tells what may be asked for, and what it lists."""

    def error(self, job: str, answer: Answer, told: str) -> HeadraceError:
        """The error to raise; see `BatchSystem.submit`.

        Args:
            job: Name of the job.
            answer: What the command answered.
            told: The words of it that users need.
        """
        if answer.code in (0, None) or self.unclear.search(answer.error):
            return AmbiguousSubmitError(f"{self.command} gave no clear answer for {job}: {told}")
        if self.full.search(answer.error):
            return SubmitLimitError(f"waiting: {self.system} takes no further job: {told}")
        return JobRefusedError(
            f"{self.system} refuses the job {job}: {told}",
            f"Correct the role's `batch` settings in the site; {self.hint}",
        )
