"""What all checks of batch systems ask in the same way, and how they tell it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.batch.commands import Commands
from headrace.batch.findings import Finding, Grade, fail, ok
from headrace.batch.jobs import JobSpec
from headrace.errors import BatchError, LoginError

_NO_ANSWER = (
    "Is it up? `batch.config` of the role, or the environment, must name the configuration of this "
    "cluster."
)


@dataclass(frozen=True, kw_only=True)
class QueueCheck:
    """How a role of a site is held against a real batch system."""

    programs: Mapping[str, Sequence[str]]
    """Programs it needs, and the options with which they tell their version."""
    advice: str
    """What to do about one that fails."""
    look: Callable[[Commands, JobSpec], Iterator[Finding]]
    """What is looked at once they are there; stops where nothing more can be learnt."""

    def findings(self, commands: Commands, spec: JobSpec) -> Iterator[Finding]:
        """What a look at the batch system finds for a job.

        Args:
            commands: Runs its commands.
            spec: The job as headrace would submit it.

        Raises:
            BatchError: It does not answer.
        """
        found = list(programs(commands, self.programs, self.advice))
        yield from found
        if all(each.grade is Grade.OK for each in found):
            yield from self.look(commands, spec)


def answered(commands: Commands, command: Sequence[str], system: str, hint: str) -> str:
    """What a command says, when it succeeds.

    Args:
        commands: Runs it.
        command: The command.
        system: Name of the batch system, for users.
        hint: What may be wrong when it fails.

    Raises:
        BatchError: It fails.
    """
    answer = commands.run(command)
    if answer.code != 0:
        words = " ".join(command[:2])
        raise BatchError(f"{system} does not answer {words}: {said(answer.error)}", hint)
    return answer.output


def programs(
    commands: Commands, asked: Mapping[str, Sequence[str]], advice: str
) -> Iterator[Finding]:
    """Whether programs are there, and of which version the first one is.

    Args:
        commands: Runs them.
        asked: Programs, and the options with which they tell their version.
        advice: What to do about one that fails.

    Raises:
        LoginError: The login node cannot be reached, so that nothing can be said of any.
    """
    failed, version = [], ""
    for name, options in asked.items():
        try:
            answer = commands.run((name, *options))
        except LoginError:
            raise
        except BatchError as error:
            failed.append(fail("commands", error.what, error.hint or advice))
            continue
        if answer.code is None:  # the others would be waited for as long
            yield fail("commands", said(answer.error), _NO_ANSWER)
            return
        if answer.code != 0:
            failed.append(fail("commands", f"{name}: {said(answer.error)}", advice))
        version = version or f"{answer.output}\n{answer.error}".strip().partition("\n")[0].strip()
    yield from failed or [ok("commands", f"{', '.join(asked)}: {version}")]


def said(text: str) -> str:
    """The words of a command in one line, without the prefixes that Slurm gives them."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in text.splitlines()]
    return "; ".join(line.strip() for line in lines if line.strip()) or "no answer"


def hours(seconds: float | None) -> str:
    """A time for people; None for no limit."""
    if seconds is None:
        return "no limit"
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds / 60:.3g} min"
