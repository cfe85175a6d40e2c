"""Commands of a batch system that give prepared answers, or spoil those of a real one."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.batch.commands import CommandResult, Commands


class ScriptedCommands:
    """Gives one prepared answer after another.

    Args:
        answers: What is answered; the last one again and again.
    """

    def __init__(self, *answers: CommandResult) -> None:
        self._answers = list(answers)
        self.seen: list[tuple[str, ...]] = []

    def run(self, command: Sequence[str], text: str = "") -> CommandResult:
        """Answer, whatever was asked."""
        del text
        self.seen.append(tuple(command))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class FlakySubmits:
    """Real commands of which the first submits lose their answers.

    Args:
        commands: The real ones.
        after: How many submits do their work and then give no answer.
        before: How many later submits give no answer and do no work.
        program: The submit command.
        error: What it says when it gives no answer.
    """

    def __init__(
        self,
        commands: Commands,
        *,
        after: int = 0,
        before: int = 0,
        program: str = "sbatch",
        error: str = "sbatch: error: Socket timed out on send/recv operation",
    ) -> None:
        self._commands = commands
        self._program, self._error = program, error
        self._after, self._before = after, before
        self.num_submits = 0

    def run(self, command: Sequence[str], text: str = "") -> CommandResult:
        """Run the command, or not."""
        if command[0] != self._program:
            return self._commands.run(command, text)
        self.num_submits += 1
        no_answer = CommandResult(1, "", self._error)
        if self.num_submits <= self._after:
            self._commands.run(command, text)
            return no_answer
        if self.num_submits <= self._after + self._before:
            return no_answer
        return self._commands.run(command, text)


class SmallSlurm:
    """Commands of a Slurm whose jobs are set by the test."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}  # states by id
        self.refuses = ""  # with these words
        self.association = "physics|physics||normal|\n"
        self.num_asked = {"squeue": 0, "sbatch": 0, "sacctmgr": 0}

    def run(self, command: Sequence[str], text: str = "") -> CommandResult:
        """Answer as that command would."""
        del text
        name = command[0]
        self.num_asked[name] = self.num_asked.get(name, 0) + 1
        if name == "sbatch":
            return self._submit()
        if name == "squeue":
            rows = [f"{job_id}|{state}|N/A||None|x" for job_id, state in self.jobs.items()]
            return CommandResult(0, "\n".join(rows), "")
        if name == "sacctmgr":
            return CommandResult(0, self.association if "user" in command else "normal|\n", "")
        return CommandResult(0, "me\n", "") if name == "id" else CommandResult(1, "", "no books")

    def _submit(self) -> CommandResult:
        if self.refuses:
            return CommandResult(1, "", f"sbatch: error: {self.refuses}")
        job_id = str(len(self.jobs) + 1)
        self.jobs[job_id] = "PENDING"
        return CommandResult(0, f"{job_id}\n", "")
