"""The batch systems: one narrow interface, and what they have in common."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from headrace.batch.commands import Answer, Commands
from headrace.batch.jobs import JobSpec, JobStatus
from headrace.batch.limits import Limit
from headrace.batch.refusals import Refusals
from headrace.batch.scripts import INDEX, told
from headrace.errors import BatchError
from headrace.recipe.batch import Batch


class BatchSystem(ABC):
    """What a batch system must be able to do. One instance serves one user of one cluster.

    Args:
        commands: Runs its commands.
        queue: Which queue this is, where a site has several; empty for the machine's own.
    """

    name: str
    """Its name, for users."""
    config_variable: str
    """Environment variable of its commands that tells one such queue from another."""
    programs_variable: str = ""
    """Environment variable of a job that names the folder of its commands; empty for none."""
    job_variable: str
    """Environment variable of a job's first task that holds the job's id."""
    job_variables: tuple[str, ...]
    """How the variables begin that a job has; they must not reach jobs submitted from it."""
    index_variable: str = INDEX
    """Environment variable of a job's tasks that holds the place of the node, from 0."""
    books_pause_s: float = 0.0
    """Seconds between two looks into its books for a job that they do not know, where each look
    reads all of them."""
    show: str
    """Command that shows all of a job; its id follows."""
    submit_command: tuple[str, ...]
    """Command that takes a job script as its input."""
    submitted: re.Pattern[str]
    """Where its answer has the job's `id`."""
    refusals: Refusals
    """How it says no."""

    def __init__(self, commands: Commands, queue: str = "") -> None:
        self._commands = commands
        self.queue = queue

    @abstractmethod
    def render(self, spec: JobSpec) -> str:
        """The job script; a pure function of the spec."""

    def submit(self, spec: JobSpec) -> str:
        """Submit a job once.

        Returns:
            The job's id.

        Raises:
            JobRefusedError: The batch system refuses the job, and will again.
            SubmitLimitError: It refuses the job until others of the user have ended.
            AmbiguousSubmitError: There was no clear answer; the job may be there.
        """
        answer = self._commands.run(self.submit_command, self.render(spec))
        submitted = self.submitted.search(answer.output)
        if answer.code == 0 and submitted:
            return submitted["id"]
        raise self.refusals.error(spec.name, answer, self._words(answer))

    def refusal(self, spec: JobSpec) -> str:
        """Why the system would never take a job, where it can be asked without submitting it.

        Returns:
            Its words; empty where it would take the job, now or later, or cannot be asked.

        Raises:
            BatchError: It cannot be asked.
        """
        return ""

    @abstractmethod
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """How jobs stand, in one query however many they are.

        Returns:
            Jobs by id, those that the system still remembers.

        Raises:
            BatchError: The batch system does not answer.
        """

    @abstractmethod
    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """What the books say of jobs, also of those that `poll` has forgotten, in one query.

        Raises:
            BatchError: There are no books, or they do not answer.
        """

    @abstractmethod
    def find(self, name: str) -> tuple[JobStatus, ...]:
        """Jobs of that name, the ended ones too, the newest last.

        Raises:
            BatchError: The batch system does not answer.
        """

    @abstractmethod
    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Nodes of a job in the order of its tasks, by the names that `JobSpec.exclude` takes.

        Args:
            environment: Environment of one of its tasks.

        Returns:
            Names; empty when they are not known.
        """

    @abstractmethod
    def cancel(self, job_ids: Sequence[str]) -> None:
        """End jobs; those that have ended are fine.

        Raises:
            BatchError: The batch system does not answer.
        """

    def limits(self, spec: JobSpec) -> tuple[Limit, ...]:
        """What the system tells of how many such jobs the user may have; often nothing.

        Raises:
            BatchError: It cannot be asked.
        """
        return ()

    @abstractmethod
    def longest_job_s(self, batch: Batch) -> float | None:
        """Longest time that the system gives a job, seconds.

        Args:
            batch: What the job is asked for; partition, account and the like.

        Returns:
            None where there is no limit, or the system tells of none.

        Raises:
            BatchError: It cannot be asked.
        """

    def _ask(self, command: Sequence[str]) -> str:
        answer = self._commands.run(command)
        if answer.code == 0 or self._is_about_nothing(answer):
            return answer.output
        raise BatchError(f"{self.name} does not answer {command[0]}: {self._words(answer)}")

    def _words(self, answer: Answer) -> str:
        """What users need of the words of a command that failed."""
        return told(answer)

    def _is_about_nothing(self, answer: Answer) -> bool:
        """Whether a command failed since the jobs that it was asked about are not known."""
        return False
