"""Machines without a queue: a job is a detached process on the first of some SSH hosts.

What is known of a job lies on the first host, in `~/.headrace/ssh-jobs/NAME`: its script, the
process and, at the end, the exit code. Its processes are found by `HEADRACE_JOB_ID` in their
environment, on all hosts. The hosts run Linux.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from typing_extensions import override

from headrace.batch.commands import Commands
from headrace.batch.jobs import JobSpec, JobState, JobStatus
from headrace.batch.scripts import script, told
from headrace.batch.system import BatchSystem
from headrace.errors import AmbiguousSubmitError, BatchError, JobRefusedError
from headrace.recipe.batch import Batch, Login

JOB = "HEADRACE_JOB_ID"
"""Environment variable of all processes of a job: its name."""

_FOLDER = 'd="$HOME/.headrace/ssh-jobs/$n"'

_COMPLETE = "# complete"
_OF_SSH = "255"  # its exit code when it is ssh itself that fails
_START = f"""\
umask 077
n=$1
{_FOLDER}
mkdir -p "${{d%/*}}"
find "${{d%/*}}" -mindepth 2 -maxdepth 2 -name code -mtime +30 -printf '%h\\0' | xargs -0r rm -rf
cat > "$d.$$"
if [ "$(tail -n 1 "$d.$$")" != "{_COMPLETE}" ]; then rm "$d.$$"; exit 1; fi
if ! mkdir "$d" 2> /dev/null; then rm "$d.$$"; echo "$n"; exit 0; fi
mv "$d.$$" "$d/script"
{JOB}="$n" setsid sh -c '
echo "$$ $(cut -d " " -f 22 /proc/$$/stat)" > "$1/new"
mv "$1/new" "$1/process"
timeout --kill-after=30 "$2" /bin/bash "$1/script" &
job=$! code=0
wait $job || code=$?
exec 2> /dev/null
kill -TERM -$job  # what a script leaves whose other hosts have failed
for tick in $(seq 100); do
    kill -s 0 -$job || break
    sleep 0.1
done
kill -KILL -$job
echo $code > "$1/new"
mv "$1/new" "$1/code"
' sh "$d" "$2" < /dev/null > "$d/output" 2>&1 &
until [ -s "$d/process" ]; do sleep 0.05; done
echo "$n"
"""
"""Takes the script on its standard input, all or nothing; a second time changes nothing.

`timeout` makes a group of the processes that it starts; the job has ended when they have.
"""

_LOOK = f"""\
for n; do
    {_FOLDER}
    [ -d "$d" ] || continue
    state=gone code=-
    if [ ! -s "$d/process" ]; then
        state=running
    else
        read -r pid start < "$d/process"
        case "$(cut -d " " -f 3,22 "/proc/$pid/stat" 2> /dev/null)" in
            Z*) ;;  # killed, and not cleared away yet
            *" $start") state=running ;;
        esac
    fi
    if [ -s "$d/code" ]; then  # looked for last: its process ends when it has written that
        state=ended code=$(cat "$d/code")
    fi
    if [ -e "$d/cancelled" ] && [ $state != running ]; then state=cancelled; fi
    echo "$n $state $code"
done
"""

_END = f"""\
for n; do
    {_FOLDER}
    if [ -d "$d" ] && [ ! -e "$d/code" ]; then touch "$d/cancelled"; fi
    for tick in $(seq 0 70); do
        found=$(grep -lzx "{JOB}=$n" /proc/[0-9]*/environ 2> /dev/null | cut -d / -f 3)
        if [ -z "$found" ]; then break; fi
        if [ "$tick" = 0 ]; then kill -TERM $found 2> /dev/null; fi
        if [ "$tick" -ge 50 ]; then kill -KILL $found 2> /dev/null; fi
        sleep 0.1
    done
done
exit 0
"""

_WATCH = f"""\
export {JOB}=NAME
if [ "$1" != 0 ] && [ -z "$HEADRACE_WATCHED" ]; then
    exec 3<&0
    HEADRACE_WATCHED=yes setsid /bin/bash "$0" "$1" < /dev/null 3<&- &
    child=$!
    {{ cat <&3; kill -TERM -- -$child; sleep 10; kill -KILL -- -$child; }} > /dev/null 2>&1 &
    watch=$!
    code=0
    wait $child || code=$?
    kill $watch
    exit $code
fi
"""
"""On further hosts: what runs there ends when the connection from the first host does."""


class SshHosts(BatchSystem):
    """Hosts in the place of a batch system; nobody else is kept off them.

    Args:
        hosts: How they are reached; the first ones are used, as many as a job has nodes.
        commands: Runs commands on them, by name of the host.
    """

    name = "SSH"
    config_variable = ""
    job_variable = JOB
    job_variables = (JOB,)
    show = "ls ~/.headrace/ssh-jobs"

    def __init__(self, hosts: Sequence[Login], commands: Mapping[str, Commands]) -> None:
        self._hosts = tuple(hosts)
        self._commands_of = dict(commands)
        self._first = self._commands_of[hosts[0].host]
        super().__init__(self._first, f"ssh {hosts[0].host}:{hosts[0].port or ''}")

    @override
    def render(self, spec: JobSpec) -> str:
        return render(spec, self._hosts)

    @override
    def submit(self, spec: JobSpec) -> str:
        """Start a job once; its id is its name. See `BatchSystem.submit`.

        Raises:
            JobRefusedError: The first host cannot start it.
            AmbiguousSubmitError: No clear answer.
        """
        limit = f"{spec.time_limit_s:.0f}"
        answer = self._first.run(("sh", "-c", _START, "sh", spec.name, limit), self.render(spec))
        if answer.code == 0 and answer.output.strip() == spec.name:
            return spec.name
        if answer.code in (0, None):
            raise AmbiguousSubmitError(f"No clear answer for {spec.name}: {told(answer)}")
        raise JobRefusedError(
            f"{self._hosts[0].host} cannot start {spec.name}: {told(answer)}",
            "It needs Linux with sh, bash, setsid and timeout, and a home folder to write to.",
        )

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        if not job_ids:
            return {}
        answer = self._first.run(("sh", "-c", _LOOK, "sh", *job_ids))
        if answer.code != 0:
            raise BatchError(f"{self._hosts[0].host} does not answer: {told(answer)}")
        found = [_status(*line.split()) for line in answer.output.splitlines()]
        return {each.job_id: each for each in found}

    @override
    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        return self.poll(job_ids)

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        return tuple(self.poll([name]).values())

    @override
    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        return ()

    @override
    def cancel(self, job_ids: Sequence[str]) -> None:
        silent = []
        for host, commands in self._commands_of.items() if job_ids else ():
            try:
                answer = commands.run(("sh", "-c", _END, "sh", *job_ids))
            except BatchError as error:
                silent.append(error.what)
                continue
            if answer.code != 0:
                silent.append(f"{host} does not answer: {told(answer)}")
        if silent:
            raise BatchError("; ".join(silent))

    @override
    def longest_job_s(self, batch: Batch) -> float | None:
        return None


def render(spec: JobSpec, hosts: Sequence[Login]) -> str:
    """The job script of a spec; `ssh` runs the command on all hosts but the first."""
    used = hosts[: spec.nodes]
    names = shlex.join([each.host for each in used])
    ways = [f"{i}) set -- {shlex.join(way_to(each))} ;;" for i, each in enumerate(used) if i]
    launch = (
        f"case $i in {' '.join(ways)} esac; "
        'tail --pid=$$ -f /dev/null | "$@" /bin/bash "$(printf %q "$file")" $i'
    )
    listed = f"<(printf '%s\\n' {names})"
    watch = _WATCH.replace("NAME", spec.name).splitlines()
    return f"{script([], spec, hosts=listed, launch=launch, first=watch)}{_COMPLETE}\n"


def way_to(host: Login) -> tuple[str, ...]:
    """The command that runs another one on a host, from the first one."""
    given = [part for option in host.options for part in ("-o", option)]
    port = ["-p", str(host.port)] if host.port else []
    identity = ["-i", host.identity] if host.identity else []
    fixed = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-T"]
    return ("ssh", *fixed, *given, *port, *identity, host.host)


def _status(name: str, word: str, code: str) -> JobStatus:
    state, reason = {
        "running": (JobState.RUNNING, ""),
        "cancelled": (JobState.CANCELLED, ""),
        "gone": (JobState.NODE_FAILED, "its process is gone: killed, or the host was restarted"),
        "ended": (JobState.FAILED, f"exit code {code}"),
    }[word]
    if word == "ended" and code in ("0", "124"):
        state = JobState.COMPLETED if code == "0" else JobState.TIMED_OUT
    if word == "ended" and code == _OF_SSH:
        state = JobState.NODE_FAILED
        reason = "a host, or the connection to it from the first, is gone"
    return JobStatus(job_id=name, state=state, reason=reason if state.is_final else "")
