"""The batch systems: one narrow interface, and what they have in common; their job scripts."""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from headrace.batch.commands import CommandResult, Commands
from headrace.batch.findings import Finding, Grade, fail, ok
from headrace.batch.job_records import JobSpec, JobStatus
from headrace.batch.role_commands import commands_of, queue_of
from headrace.errors import (
    AmbiguousSubmitError,
    BatchError,
    JobRefusedError,
    LoginError,
    SubmitLimitError,
)
from headrace.recipe.backend import Backend
from headrace.recipe.batch import Batch
from headrace.recipe.site import Role
from headrace.record import Record

if TYPE_CHECKING:
    from jinja2 import Environment

INDEX = "HEADRACE_NODE_INDEX"
"""Environment variable of the command: place of its node in the job, from 0."""

_TEMPLATES = Path(__file__).parent / "templates"
_OPTION = re.compile(r"(--[A-Za-z][\w-]*[= ]|-(?!pe )[A-Za-z]+ )(.*)")
"""Name and value; Grid Engine's `-pe` has two values."""

_NO_ANSWER = (
    "Is it up? `batch.config` of the role, or the environment, must name the configuration of this "
    "cluster."
)


class Limit(Record):
    """A limit on the jobs that are in a queue at once."""

    most: int
    queued_only: bool = False
    """Whether jobs that wait are counted, and running ones are not."""
    whose: str
    """Who sets it, for users, such as `site`."""

    def __str__(self) -> str:
        return f"{self.whose} limit of {self.most} {'queued ' if self.queued_only else ''}jobs"


NAMED = "headrace finds its jobs by their names"
ONE_TASK_A_NODE = (
    "headrace starts one task on each node; write `ranks_per_node` and `threads_per_node`"
)
LOGS = "the log belongs into the lease's folder"
FOLDER = "the job runs in the lease's folder"
ONCE = "headrace starts again what was lost; a second layer would double the work"
ID_AT_ONCE = "headrace needs the job's id at once"
ONE_JOB = "a lease is one job"
NO_TERMINAL = "nobody sits in front of the job"
COMMAND = "the job's command is headrace's"
"""Why options of submit commands are refused."""

OWN_OPTION = "write what the cluster knows into `batch.options`"
ONLY_SLURM = {
    "qos": OWN_OPTION,
    "constraint": OWN_OPTION,
    "srun_options": "there is no `srun`",
    "submit_as": "only jobs of Slurm can be submitted as others",
}
"""What systems other than Slurm lack."""


class BatchSystem(Backend, ABC):
    """What a batch system must be able to do. One instance serves one user of one cluster.

    Whatever asks it raises BatchError without an answer. An empty `queue` is the machine's own.
    """

    name: str
    template: str
    """Name of the template of its job scripts, `NAME.sh.jinja`: beside its module, or one of
    headrace's."""
    config_variable: ClassVar[str] = ""
    """Environment variable of its commands that tells one such queue from another."""
    programs_variable: ClassVar[str] = ""
    """Environment variable of a job that names the folder of its commands; empty for none."""
    job_variable: ClassVar[str]
    """Environment variable of a job's first task that holds the job's id."""
    job_variables: ClassVar[tuple[str, ...]]
    """How the variables begin that a job has; they must not reach jobs submitted from it."""
    index_variable: str = INDEX
    """Environment variable of a job's tasks that holds the place of the node, from 0."""
    books_pause_s: float = 0.0
    """Seconds between two looks for a job that its books do not know, where each reads them all."""
    show: str
    """Begin of a command that shows all of a job; its id follows at once."""
    submit_command: tuple[str, ...]
    """Command that takes a job script as its input."""
    submitted: re.Pattern[str]
    """Where its answer has the job's `id`."""
    cancel_command: tuple[str, ...]
    """Command that ends jobs; their ids follow."""
    unclear: re.Pattern[str]
    """Errors of a submit after which the job may be there all the same."""
    full: re.Pattern[str]
    """Refusals that go away when other jobs end."""
    nothing: re.Pattern[str] | None = None
    """Errors about jobs that are not known, or have ended."""
    hint: str
    """Command that tells what may be asked for, and what it lists."""
    silent: str = ""
    """What may be wrong when it does not answer."""
    programs: tuple[str, ...]
    version_option = "--version"

    def __init__(self, commands: Commands, queue: str = "") -> None:
        self.commands = commands
        self.queue = queue

    @classmethod
    @override
    def connect(cls, role: Role, timeout_s: float) -> BatchSystem:
        return cls(commands_of(cls, role, timeout_s), queue_of(role))

    def render(self, spec: JobSpec) -> str:
        """The job script; a pure function of the spec."""
        return render(self.template, spec, beside=inspect.getfile(type(self)))

    def preview(self, spec: JobSpec) -> str:
        """What `submit` would send, for users."""
        return self.render(spec)

    def submit(self, spec: JobSpec) -> str:
        """Submit a job once; gives its id.

        Raises:
            JobRefusedError: The batch system refuses the job, and will again.
            SubmitLimitError: It refuses the job until others of the user have ended.
            AmbiguousSubmitError: There was no clear answer; the job may be there.
        """
        return self._submit(spec, self.submit_command, self.render(spec))

    def _submit(self, spec: JobSpec, command: Sequence[str], text: str = "") -> str:
        answer = self.commands.run(command, text)
        submitted = self.submitted.search(answer.output)
        if answer.code == 0 and submitted:
            return submitted["id"]
        told, program = self._words(answer), command[0]
        if answer.code in (0, None) or self.unclear.search(answer.error):
            raise AmbiguousSubmitError(f"{program} gave no clear answer for {spec.name}: {told}")
        if self.full.search(answer.error):
            raise SubmitLimitError(f"waiting: {self.name} takes no further job: {told}")
        raise JobRefusedError(
            f"{self.name} refuses the job {spec.name}: {told}",
            f"Correct the role's `batch` settings in the site; {self.hint}",
        )

    def refusal(self, spec: JobSpec) -> str:
        """Why the system would never take a job; empty where it takes it, or cannot be asked so."""
        return ""

    @abstractmethod
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Jobs by id that the system still remembers, in one query however many they are."""

    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """What the books say of jobs, also of those that `poll` has forgotten, in one query."""
        return self.poll(job_ids)

    @abstractmethod
    def find(self, name: str) -> tuple[JobStatus, ...]:
        """Jobs of that name, the ended ones too, the newest last."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End jobs; those that have ended are fine."""
        if job_ids:
            self._ask(*self.cancel_command, *job_ids)

    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Nodes of a job in the order of its tasks, from the environment of one of these.

        The names are those that `JobSpec.exclude` takes; none when they are not known.
        """
        return ()

    def limits(self, spec: JobSpec) -> tuple[Limit, ...]:
        """What the system tells of how many such jobs the user may have; often nothing."""
        return ()

    def longest_job_s(self, batch: Batch) -> float | None:
        """Longest time that a job gets, seconds; None where there is no limit, or none is told."""
        return None

    def check(self, spec: JobSpec) -> Iterator[Finding]:
        """What a look at the batch system finds for a job; ends where no more can be learnt."""
        found = list(self._check_programs())
        yield from found
        if all(each.grade is Grade.OK for each in found):
            yield from self._check_queue(spec)

    def _check_queue(self, spec: JobSpec) -> Iterator[Finding]:
        """The part of `check` that differs: its programs are there."""
        yield from ()

    def _check_programs(self) -> Iterator[Finding]:
        """Whether the programs are there, and of which version the first one is."""
        advice = f"Run headrace where the commands of {self.name} are, and have them on PATH."
        failed, version = [], ""
        for name in self.programs:
            try:
                answer = self.commands.run((name, self.version_option))
            except LoginError:  # nothing can be said of any
                raise
            except BatchError as error:
                failed.append(fail("commands", error.what, error.hint or advice))
                continue
            if answer.code is None:  # the others would be waited for as long
                yield fail("commands", answer.words, _NO_ANSWER)
                return
            if answer.code != 0:
                failed.append(fail("commands", f"{name}: {answer.words}", advice))
            lines = f"{answer.output}\n{answer.error}".strip().splitlines()
            version = version or "".join(lines[:1]).strip()
        yield from failed or [ok("commands", f"{', '.join(self.programs)}: {version}")]

    def _ask(self, *command: str) -> str:
        """The output of a command; nothing when it only does not know the jobs."""
        answer = self.commands.run(command)
        if answer.code == 0 or self._is_about_nothing(answer):
            return answer.output
        told = f"{self.name} does not answer {command[0]}: {self._words(answer)}"
        raise BatchError(told, self.silent)

    def _ask_json(self, *command: str) -> Any:
        text = self._ask(*command)
        try:
            return json.loads(text, strict=False) if text.strip() else None
        except ValueError as error:
            told = f"{self.name} does not answer {command[0]} in JSON: {error}"
            raise BatchError(told, self.silent) from error

    def _words(self, answer: CommandResult) -> str:
        """What users need of the words of a command that failed."""
        return answer.words

    def _is_about_nothing(self, answer: CommandResult) -> bool:
        said = [line for line in self._complaints(answer) if line.strip()]
        nothing = self.nothing
        return nothing is not None and bool(said) and all(map(nothing.search, said))

    def _complaints(self, answer: CommandResult) -> list[str]:
        """The lines of a failed command that say why."""
        return answer.error.splitlines()


def by_id(found: Sequence[JobStatus]) -> tuple[JobStatus, ...]:
    """Jobs in the order in which they were submitted."""
    return tuple(sorted(found, key=lambda each: (len(each.job_id), each.job_id)))


def first_words(file: str | None) -> tuple[str, ...]:
    """Names of a job's hosts out of a file whose lines begin with them, each once."""
    try:
        lines = Path(file).read_text().splitlines() if file else []
    except OSError:  # it is on another node
        return ()
    return tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def render(template: str, job: JobSpec, *, beside: str = __file__, **more: object) -> str:
    """The script of a job, by a template beside a module or of headrace."""
    environment = _environment(str(Path(beside).parent))
    return environment.get_template(f"{template}.sh.jinja").render(job=job, **more)


def shell(name: str) -> str:
    """A shell program that is no template."""
    return (_TEMPLATES / f"{name}.sh").read_text()


def with_quotes(option: str) -> str:
    """An option as a site says it, in the words of a script's directive.

    A value with spaces is quoted. What is quoted already stays as it is, and so does what may be
    several options, or several values of one.
    """
    parts = _OPTION.fullmatch(option)
    if parts is None or not re.search(r"\s", parts[2]) or re.search(r"['\"\\]|\s-", parts[2]):
        return option
    return f"{parts[1]}{shlex.quote(parts[2])}"


def clock(seconds: float, *, days: bool = False) -> str:
    """A duration as `26:00:00`, rounded up to minutes; with days, as `1-02:00:00`."""
    minutes = math.ceil(seconds / 60)
    num_days, minutes = divmod(minutes, 24 * 60) if days else (0, minutes)
    before = f"{num_days}-" if num_days else ""
    return f"{before}{minutes // 60:02d}:{minutes % 60:02d}:00"


@functools.cache
def _environment(folder: str) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, _TEMPLATES]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{*",  # `${#hosts[@]}` is shell
        comment_end_string="*}",
    )
    filters: dict[str, Callable[..., object]] = {
        "clock": clock,
        "mebibytes": lambda num_bytes: math.ceil(num_bytes / 2**20),
        "option": with_quotes,
        "quote": shlex.quote,
        "words": shlex.join,
    }
    environment.filters |= filters
    return environment
