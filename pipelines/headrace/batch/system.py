"""The interface of batch systems, their common parts, and their job scripts."""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from headrace import errors
from headrace.batch.commands import CommandResult, Commands, LocalCommands, SudoCommands
from headrace.batch.findings import Finding, Grade, fail, ok
from headrace.batch.job_records import JobSpec, JobStatus
from headrace.batch.ssh import SshCommands
from headrace.recipe.backend import Backend, backend_of
from headrace.recipe.batch import Batch
from headrace.recipe.site import Role
from headrace.recipe.unix_accounts import account
from headrace.record import Record

if TYPE_CHECKING:
    from jinja2 import Environment

INDEX = "HEADRACE_NODE_INDEX"
"""Environment variable of the command: index of its node in the job, from 0."""

# seconds since the epoch: the commands may run in another time zone than this process
_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"}
_TEMPLATES = Path(__file__).parent / "templates"
_OPTION = re.compile(r"(--[A-Za-z][\w-]*[= ]|-(?!pe )[A-Za-z]+ )(.*)")
"""Name and value; the option `-pe` of Grid Engine has two values."""

_NO_ANSWER = (
    "Is it up? `batch.config` of the role, or the environment, must name the configuration of this "
    "cluster."
)


class Limit(Record):
    """A limit on the jobs that are in a queue at once."""

    most: int
    queued_only: bool = False
    """Whether only waiting jobs count."""
    whose: str
    """Origin of the limit for users, as `site`."""

    def __str__(self) -> str:
        return f"{self.whose} limit of {self.most} {'queued ' if self.queued_only else ''}jobs"


NAMED = "headrace finds its jobs by their names"
ONE_TASK_A_NODE = (
    "headrace starts one task on each node; write `ranks_per_node` and `threads_per_node`"
)
LOGS = "headrace writes the log into the lease's folder"
FOLDER = "the job runs in the lease's folder"
ONCE = "headrace retries lost work itself; a second layer would double the work"
ID_AT_ONCE = "headrace needs the job's id at once"
ONE_JOB = "a lease is one job"
NO_TERMINAL = "jobs have no terminal"
COMMAND = "headrace sets the job's command"
"""Why options of submit commands are refused."""

OWN_OPTION = "write the cluster's own option into `batch.options`"
ONLY_SLURM = {
    "qos": OWN_OPTION,
    "constraint": OWN_OPTION,
    "srun_options": "there is no `srun`",
    "submit_as": "only jobs of Slurm can be submitted as others",
}
"""Keys that batch systems other than Slurm lack."""


class BatchSystem(Backend[Role], ABC):
    """Interface of a batch system. One instance serves one user of one cluster.

    Methods that ask it raise BatchError without an answer. An empty `queue` is the machine's own.
    """

    name: str
    template: str
    """Name of its job scripts' template, `NAME.sh.jinja`: in its module's folder, or headrace's."""
    config_variable: ClassVar[str] = ""
    """Environment variable of its commands that selects the queue's configuration."""
    programs_variable: ClassVar[str] = ""
    """Environment variable of a job that names the folder of its commands; empty for none."""
    job_variable: ClassVar[str]
    """Environment variable of a job's first task that holds the job's id."""
    job_variables: ClassVar[tuple[str, ...]]
    """Prefixes of a job's variables; these must not reach jobs submitted from the job."""
    index_variable: str = INDEX
    """Environment variable of a job's tasks that holds the index of the node, from 0."""
    accounting_pause_s: float = 0.0
    """Longest delay of the accounting, and seconds between two queries for a job that it lacks."""
    show: str
    """Begin of a command that shows all of a job; the id follows directly."""
    submit_command: tuple[str, ...]
    """Command that reads a job script from its input."""
    submitted: re.Pattern[str]
    """Finds the job's `id` in its answer."""
    cancel_command: tuple[str, ...]
    """Command that ends jobs; their ids follow."""
    unclear: re.Pattern[str]
    """Errors of a submission after which the job may exist all the same."""
    full: re.Pattern[str]
    """Refusals that end when other jobs end."""
    nothing: re.Pattern[str] | None = None
    """Errors about jobs that are unknown, or have ended."""
    hint: str
    """Command that shows what jobs may request, and what it lists."""
    silent: str = ""
    """What may be wrong if the system does not answer."""
    programs: tuple[str, ...]
    version_option = "--version"

    def __init__(self, commands: Commands, queue: str = "") -> None:
        self.commands = commands
        self.queue = queue

    @classmethod
    @override
    def connect(cls, role: Role, timeout_s: float) -> BatchSystem:
        login, config = role.batch.login, role.batch.config
        address = login and f"{login.host}:{login.port or ''}"
        queue = " ".join(part for part in (address, config) if part)
        return cls(cls.commands_of(role, timeout_s), queue)

    @classmethod
    def commands_of(cls, role: Role, timeout_s: float) -> Commands:
        """Return the runner of a role's commands: here, as another account, or on a login node."""
        config, login = role.batch.config, role.batch.login
        environment = _ENVIRONMENT | ({cls.config_variable: config} if config else {})
        if login is not None and cls.job_variable not in os.environ:
            return SshCommands(login, environment, timeout_s)
        submit_as = role.batch.submit_as
        if submit_as and submit_as != account():
            if named := os.environ.get(cls.config_variable):
                environment = {cls.config_variable: named, **environment}
            return SudoCommands(submit_as, environment, timeout_s)
        # a host that is a job itself must not give its own job's limits to those it submits
        own = {name for name in os.environ if name.startswith(cls.job_variables)}
        own.discard(cls.config_variable)
        programs = os.environ.get(cls.programs_variable)
        if programs:  # a job's PATH need not have it
            environment["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), programs))
        return LocalCommands(environment, timeout_s, without=own)

    def render(self, spec: JobSpec) -> str:
        """Return the job script; a pure function of the spec."""
        return render(self.template, spec, beside=inspect.getfile(type(self)))

    def preview(self, spec: JobSpec) -> str:
        """Return what `submit` would send, for users."""
        return self.render(spec)

    def submit(self, spec: JobSpec) -> str:
        """Submit a job once; return its id.

        Raises:
            JobRefusedError: The batch system refuses the job permanently.
            SubmitLimitError: It refuses the job until others of the user have ended.
            AmbiguousSubmitError: The answer is not clear; the job may exist.
        """
        return self._submit(spec, self.submit_command, self.render(spec))

    def _submit(self, spec: JobSpec, command: Sequence[str], text: str = "") -> str:
        answer = self.commands.run(command, text)
        submitted = self.submitted.search(answer.output)
        if answer.code == 0 and submitted:
            return submitted["id"]
        reason, program = self._words(answer), command[0]
        if answer.code in (0, None) or self.unclear.search(answer.error):
            raise errors.AmbiguousSubmitError(
                f"{program} gave no clear answer for {spec.name}: {reason}"
            )
        if self.full.search(answer.error):
            raise errors.SubmitLimitError(f"waiting: {self.name} takes no further job: {reason}")
        raise errors.JobRefusedError(
            f"{self.name} refuses the job {spec.name}: {reason}",
            f"Correct the role's `batch` settings in the site; {self.hint}",
        )

    def refusal(self, spec: JobSpec) -> str:
        """Why the system would never accept a job; empty if it accepts it, or cannot be asked."""
        return ""

    @abstractmethod
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return the jobs by id that the system still knows; one query for all."""

    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return jobs by id from the accounting, even if `poll` has forgotten them; one query."""
        return self.poll(job_ids)

    @abstractmethod
    def find(self, name: str) -> tuple[JobStatus, ...]:
        """Return the jobs of that name, also ended ones; the newest last."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End jobs; jobs that have ended already are accepted."""
        if job_ids:
            self._ask(*self.cancel_command, *job_ids)

    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return a job's nodes, named as in `JobSpec.exclude`, in task order; empty if unknown."""
        return ()

    def limits(self, spec: JobSpec) -> tuple[Limit, ...]:
        """Return the limits on how many jobs of this kind the user may have; often empty."""
        return ()

    def longest_job_s(self, batch: Batch) -> float | None:
        """Return the longest time of a job, seconds; None if unlimited or unknown."""
        return None

    def check(self, spec: JobSpec) -> Iterator[Finding]:
        """Check the batch system for a job; end early where later checks cannot work."""
        found = list(self._check_programs())
        yield from found
        if all(each.grade is Grade.OK for each in found):
            yield from self._check_queue(spec)

    def _check_queue(self, spec: JobSpec) -> Iterator[Finding]:
        """Check what differs by batch system; the programs exist."""
        yield from ()

    def _check_programs(self) -> Iterator[Finding]:
        """Check that the programs exist; report the version of the first."""
        advice = f"Run headrace on a machine with {self.name}'s commands, and put them on PATH."
        failed, version = [], ""
        for name in self.programs:
            try:
                answer = self.commands.run((name, self.version_option))
            except errors.LoginError:  # the other programs cannot be checked either
                raise
            except errors.BatchError as error:
                failed.append(fail("commands", error.what, error.hint or advice))
                continue
            if answer.code is None:  # the others would time out too
                yield fail("commands", answer.words, _NO_ANSWER)
                return
            if answer.code != 0:
                failed.append(fail("commands", f"{name}: {answer.words}", advice))
            lines = f"{answer.output}\n{answer.error}".strip().splitlines()
            version = version or "".join(lines[:1]).strip()
        yield from failed or [ok("commands", f"{', '.join(self.programs)}: {version}")]

    def _ask(self, *command: str) -> str:
        """Return a command's output; empty if its only error is that jobs are unknown."""
        answer = self.commands.run(command)
        if answer.code == 0 or self._is_about_nothing(answer):
            return answer.output
        message = f"{self.name} does not answer {command[0]}: {self._words(answer)}"
        raise errors.BatchError(message, self.silent)

    def _ask_json(self, *command: str) -> Any:
        text = self._ask(*command)
        try:
            return json.loads(text, strict=False) if text.strip() else None
        except ValueError as error:
            message = f"{self.name} does not answer {command[0]} in JSON: {error}"
            raise errors.BatchError(message, self.silent) from error

    def _words(self, answer: CommandResult) -> str:
        """Return the part of a failed command's output that users need."""
        return answer.words

    def _is_about_nothing(self, answer: CommandResult) -> bool:
        said = [line for line in self._complaints(answer) if line.strip()]
        nothing = self.nothing
        return nothing is not None and bool(said) and all(map(nothing.search, said))

    def _complaints(self, answer: CommandResult) -> list[str]:
        """Return the error lines of a failed command."""
        return answer.error.splitlines()


def system_of(role: Role, timeout_s: float = 60.0) -> BatchSystem:
    """Return the batch system of a site's role; its commands time out after `timeout_s`.

    They run on this machine or the role's login node; in a job on the job's own node, which is
    inside the cluster. Raises SiteError if the backend has no batch system.
    """
    found: BatchSystem = backend_of(role.backend).connect(role, timeout_s)
    return found


def by_id(found: Sequence[JobStatus]) -> tuple[JobStatus, ...]:
    """Sort jobs by submission."""
    return tuple(sorted(found, key=lambda each: (len(each.job_id), each.job_id)))


def first_words(file: str | None) -> tuple[str, ...]:
    """Return the first word of each line of a file, each once: the names of a job's hosts."""
    try:
        lines = Path(file).read_text().splitlines() if file else []
    except OSError:  # the file is on another node
        return ()
    return tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def render(template: str, job: JobSpec, *, beside: str = __file__, **more: object) -> str:
    """Render a job's script from a template, in the folder of `beside` or headrace's own."""
    environment = _environment(str(Path(beside).parent))
    return environment.get_template(f"{template}.sh.jinja").render(job=job, **more)


def shell(name: str) -> str:
    """Return a shell program that needs no template."""
    return (_TEMPLATES / f"{name}.sh").read_text()


def with_quotes(option: str) -> str:
    """Return a site's option as a script's directive: a value with spaces is quoted.

    Quoted text stays as it is; so does text that may hold several options or values.
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
