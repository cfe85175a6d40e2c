"""Checks of a site's folder, tiers and Pythons, on this machine and by SSH on others."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headrace import __version__
from headrace.batch.commands import Commands, answer_of
from headrace.batch.findings import Finding, Grade, fail, ok, warn
from headrace.batch.job_records import JobSpec
from headrace.batch.ssh_hosts import commands_of_hosts, way_to
from headrace.errors import BatchError, SiteError
from headrace.files import tiers
from headrace.files.machine import file_system_of
from headrace.files.sharing import share
from headrace.processes.working_folder import SAFE
from headrace.recipe.batch import Login
from headrace.recipe.site import Role, Site, Tier
from headrace.recipe.unix_accounts import other_account
from headrace.site_check import file_systems

_OF_ONE_MACHINE = (
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay",
)  # fmt: skip
VERSION = f"{SAFE}import headrace; print(headrace.__version__)"
"""Code with which a Python prints its version of headrace."""

_LEAST_FREE_BYTES = 2**28
_LITTLE_FREE_BYTES = 5 * 2**30
_PYTHON_TIMEOUT_S = 60.0
_BY_JOB = "`headrace site check --submit` proves it in a job."

_NEEDED = ("bash", "setsid", "timeout", "find", "xargs", "grep", "cut", "tail", "seq")
_TOOLS = (
    'for name; do command -v "$name" > /dev/null || printf "no %s " "$name"; done; '
    "[ -e /proc/self/environ ] || printf 'no /proc'"
)
_SEES = 'cat "$1" && [ -w "$2" ] || exit 1'
_PYTHON = 'PYTHONPATH="$1" "$2" -c "$3" || exit 1'
_QUIETLY = '"$@" < /dev/null || exit 1'


def shared_folder(site: Site, *, is_proved: bool) -> Iterator[Finding]:
    """Check whether runs and leases can use the site's folder.

    Side effects: makes the folder; writes and removes files in it.
    """
    folder = Path(site.folder).expanduser().absolute()
    try:
        if other := other_account(site):
            share(folder, other)
            yield ok("folder", f"{folder} is shared with account {other}")
        folder.mkdir(parents=True, exist_ok=True)
        yield file_systems.locks(folder)
        yield file_systems.files(folder)
    except SiteError as error:
        yield fail("folder", error.what, error.hint)
        return
    except OSError as error:
        found = f"{folder}: {error.strerror or error}"
        yield fail("folder", found, "Name a folder that you may write in as the site's `folder`.")
        return
    has_queue = any(not role.is_here for role in site.roles.values())
    yield _file_system(folder, "folder", has_queue and not is_proved)
    yield from file_systems.lustre(folder)
    yield _mode(folder)
    yield _free_space(folder)


def tier_folders(site: Site) -> Iterator[Finding]:
    """Check whether staging can use the tiers, if nodes are this machine; else list them."""
    nodes_are_here = any(role.is_here for role in site.roles.values())
    for tier in site.tiers:
        name = f"tier {tier.name}"
        if not _is_own(site, tier):
            advice = "Write `{user}` into it, so that users do not share each other's files."
            yield warn(name, f"{tier.folder} is the same for all users", advice)
        elif nodes_are_here:
            yield _tier(name, tier)
        else:
            yield ok(name, f"{tiers.folder_of(tier)}; the pre-flight of the nodes checks it")


def python_of_nodes(role: Role, *, is_proved: bool) -> Finding:
    """Check that the Python that nodes start exists and has this headrace."""
    python = Path(role.batch.python or sys.executable)
    if is_proved:
        return ok("python", f"{python}, started on the nodes")
    if not python.exists():
        advice = f"It must exist on the nodes. {_BY_JOB}"
        return warn("python", f"{python} is not on this machine", advice)
    answer = answer_of((str(python), "-c", VERSION), _PYTHON_TIMEOUT_S)
    if answer.code is None:
        return fail("python", answer.error, "Correct `batch.python`.")
    if answer.code:
        last_line = answer.error.strip().splitlines()[-1:]
        return fail("python", f"{python}: {''.join(last_line)}", "Install headrace there.")
    found = judge_version(str(python), answer.output.strip())
    return _file_system(python, "python", is_doubtful=True) if found.grade is Grade.OK else found


def judge_version(python: str, theirs: str) -> Finding:
    """Compare a Python's headrace with this one; `theirs` is its answer to `VERSION`."""
    if theirs == __version__:
        return ok("python", python)
    found = f"{python} has headrace {theirs}, this is {__version__}"
    return fail("python", found, "Install the same version in both.")


def container_image(role: Role) -> Iterator[Finding]:
    """Check that the images of the role's containers exist."""
    for container in role.containers:
        if container.is_pulled or Path(container.image).exists():
            yield ok("container", f"{container.runtime}: {container.image}")
        else:
            advice = f"It must exist on the nodes. {_BY_JOB}"
            yield warn("container", f"{container.image} is not on this machine", advice)


def _file_system(path: Path, subject: str, is_doubtful: bool) -> Finding:
    kind = file_system_of(path) or "unknown"
    if is_doubtful and kind in _OF_ONE_MACHINE:
        found = f"{path} lies on {kind}, which other machines hardly see"
        return warn(subject, found, f"All nodes must see it under this path. {_BY_JOB}")
    return ok(subject, f"{path} ({kind})")


def _is_own(site: Site, tier: Tier) -> bool:
    folder, mine = tiers.folder_of(tier), (os.path.expanduser("~"), site.folder)
    return "{user}" in tier.folder or any(folder.is_relative_to(each) for each in mine)


def _mode(folder: Path) -> Finding:
    mode = folder.stat().st_mode
    shown = stat.filemode(mode)
    if mode & stat.S_IWOTH:
        advice = f"All users may write there: `chmod o-w {folder}`."
        return warn("mode", f"{folder} {shown}", advice)
    return ok("mode", shown)


def _free_space(folder: Path) -> Finding:
    free_bytes = shutil.disk_usage(folder).free
    found = f"{tiers.shown_bytes(free_bytes)} free"
    if free_bytes < _LEAST_FREE_BYTES:
        return fail("room", found, "Free some space, or name another `folder`.")
    if free_bytes < _LITTLE_FREE_BYTES:
        return warn("room", found, "Packed datasets go there unless `dataset.out` is set.")
    return ok("room", found)


def _tier(name: str, tier: Tier) -> Finding:
    folder = tiers.folder_of(tier)
    problem = tiers.prepare(folder)
    if problem:
        return fail(name, f"{folder} {problem}", "Name another folder for the tier.")
    usable = tiers.measure(tier, 0).usable_bytes
    if usable == 0:
        return warn(name, f"{folder} has no room", "See `headrace cache list`.")
    return ok(name, f"{folder}, {tiers.shown_bytes(usable)} usable")


def login_node(commands: Commands, login: Login, folder: Path) -> Iterator[Finding]:
    """Check that a login node answers, and that the site's folder is the same there."""
    commands.run(("true",))
    yield ok("login", f"{login.host} runs commands")
    if not _sees(commands, folder):
        advice = "The nodes must see it under this path; login nodes mostly do, too."
        yield warn("folder", f"{login.host} does not see {folder} as this machine does", advice)


def hosts(role: Role, folder: Path, spec: JobSpec) -> Iterator[Finding]:
    """Check whether hosts without a queue can be the nodes of a job."""
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
        f"On {first.host}, `ssh {other.host} true` must work without a question: it needs a key, "
        "and a known host key."
    )
    return fail(subject, answer.words, advice)


def _sees(commands: Commands, folder: Path) -> bool:
    """Whether a file that is made here is visible there, in a folder that is writable there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".check-") as file:
            file.write(file.name)
            file.flush()
            answer = commands.run(("sh", "-c", _SEES, "sh", file.name, str(folder)))
            return answer.code == 0 and answer.output == file.name
    except OSError:  # another check reports what is wrong with it here
        return False
