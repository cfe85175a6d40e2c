"""Machines that are reached by SSH: a login node, or hosts without a queue."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from headrace.batch.commands import Commands
from headrace.batch.findings import Finding, Grade, fail, ok, warn
from headrace.batch.hosts import way_to
from headrace.batch.jobs import JobSpec
from headrace.batch.systems import commands_of_hosts
from headrace.errors import BatchError
from headrace.recipe.batch import Login
from headrace.recipe.site import Role
from headrace.runs.site_check.storage import VERSION, judge_version

_NEEDED = ("bash", "setsid", "timeout", "find", "xargs", "grep", "cut", "tail", "seq")
_TOOLS = (
    'for name; do command -v "$name" > /dev/null || printf "no %s " "$name"; done; '
    "[ -e /proc/self/environ ] || printf 'no /proc'"
)
_SEES = 'cat "$1" && [ -w "$2" ] || exit 1'
_PYTHON = 'PYTHONPATH="$1" "$2" -c "$3" || exit 1'
_QUIETLY = '"$@" < /dev/null || exit 1'


def login_node(commands: Commands, login: Login, folder: Path) -> Iterator[Finding]:
    """Whether a login node answers, and sees the site's folder.

    Raises:
        LoginError: It cannot be reached.
    """
    commands.run(("true",))
    yield ok("login", f"{login.host} runs commands")
    if not _sees(commands, folder):
        advice = "The nodes must see it under this path; login nodes mostly do, too."
        yield warn("folder", f"{login.host} does not see {folder} as this machine does", advice)


def hosts(role: Role, folder: Path, spec: JobSpec) -> Iterator[Finding]:
    """Whether hosts without a queue can be the nodes of a job."""
    used = role.batch.hosts[: spec.nodes]
    commands = commands_of_hosts(role)
    reached = []
    for host in used:
        found = list(_host(commands[host.host], host.host, folder, spec))
        yield from found
        if all(each.grade is not Grade.FAIL for each in found):
            reached.append(host)
    if used[0] in reached:
        for other in reached[1:]:
            yield _between(commands[used[0].host], used[0], other)


def _host(commands: Commands, name: str, folder: Path, spec: JobSpec) -> Iterator[Finding]:
    try:
        answer = commands.run(("sh", "-c", _TOOLS, "sh", *_NEEDED))
        if answer.output.strip():
            advice = "Jobs need Linux with bash, coreutils, findutils, grep and util-linux."
            yield fail(name, answer.output.strip(), advice)
            return
        yield ok(name, "runs commands, and has what jobs need")
        if _sees(commands, folder):
            yield ok("folder", f"{name} sees {folder}")
        else:
            advice = "All hosts must see the site's folder under this path, and may write there."
            yield fail("folder", f"{name} does not see {folder} as this machine does", advice)
        yield _python(commands, name, spec)
    except BatchError as error:
        yield fail(name, error.what, error.hint)


def _python(commands: Commands, name: str, spec: JobSpec) -> Finding:
    python, path = spec.command[0], spec.environment["PYTHONPATH"]
    answer = commands.run(("sh", "-c", _PYTHON, "sh", path, python, VERSION))
    if answer.code != 0:
        why = answer.words.rpartition("; ")[2]
        advice = "Install headrace there, or name another Python as `batch.python`."
        return fail("python", f"{python} on {name}: {why}", advice)
    return judge_version(f"{python} on {name}", answer.output.strip())


def _between(commands: Commands, first: Login, other: Login) -> Finding:
    subject = f"{first.host} to {other.host}"
    answer = commands.run(("sh", "-c", _QUIETLY, "sh", *way_to(other), "true"))
    if answer.code == 0:
        return ok(subject, "runs commands by ssh")
    advice = (
        f"On {first.host}, `ssh {other.host} true` must work without a question: a key, and a "
        "host key that is known."
    )
    return fail(subject, answer.words, advice)


def _sees(commands: Commands, folder: Path) -> bool:
    """Whether a file that is made here is seen there, and more could be written beside it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".check-") as file:
            file.write(file.name)
            file.flush()
            answer = commands.run(("sh", "-c", _SEES, "sh", file.name, str(folder)))
            return answer.code == 0 and answer.output == file.name
    except OSError:  # what is wrong with it here is found elsewhere
        return False
