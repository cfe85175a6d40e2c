"""What job scripts have in common where no `srun` runs the command on every node; pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from headrace.batch.commands import Answer
from headrace.batch.jobs import STARTED, JobSpec

INDEX = "HEADRACE_NODE_INDEX"
"""Environment variable of the command: place of its node in the job, from 0."""

_PATIENCE_S = 30
_END = "END_OF_NODE_SCRIPT"
_OPTION = re.compile(r"(--[A-Za-z][\w-]*[= ]|-(?!pe )[A-Za-z]+ )(.*)")
"""Name and value; Grid Engine's `-pe` has two values."""

_PROGRAM = re.compile(r"^(q(sub|stat|del|select|acct)|b(sub|jobs|kill|acct)): ")


def script(
    directives: Sequence[str],
    spec: JobSpec,
    *,
    hosts: str,
    launch: str,
    first: Sequence[str] = (),
) -> str:
    """A job script that runs the spec's command once on each node.

    The script writes what a node does into the job's folder, which all nodes see: the
    environment and the quoting of the remote launchers differ too much to hand it through them.
    The first node, on which the script runs, needs no launcher. When a node fails, the job ends;
    when one has ended well, the others have half a minute more, as with `srun`.

    Args:
        directives: Lines with the options of the submit command.
        spec: The job.
        hosts: Shell word: file whose lines begin with the names of the job's hosts.
        launch: Shell line that runs `/bin/bash "$file" $i` on host `$host`, the `$i`-th from 0.
        first: Lines that each node runs before all else; `$0` is the file, `$1` the node's place.
    """
    if spec.nodes == 1:
        place = ["set -- 0"] if first else []
        lines = ["#!/bin/bash", *directives, STARTED, *place]
        return "\n".join([*lines, *_on_node(spec, "0", first, _alone(spec))]) + "\n"
    file = f"file={shlex.quote(f'{spec.folder}/{spec.name}.sh')}"
    write = [
        file,
        f"cat > \"$file\" << '{_END}'",
        "#!/bin/bash",
        *_on_node(spec, "$1", first, [f"exec {shlex.join(spec.command)}"]),
        _END,
    ]
    look = [
        f"hosts=($(awk '!seen[$1]++ {{print $1}}' {hosts}))",
        f"if [ ${{#hosts[@]}} -ne {spec.nodes} ]; then",
        f'    echo "{spec.nodes} hosts were asked for; the job has ${{#hosts[@]}}: ${{hosts[*]}}"',
        "    exit 1",
        "fi",
    ]
    run = [
        *(["end() { code=$?"] if spec.epilogue else []),
        *spec.epilogue,
        *(["exit $code; }", "trap end EXIT"] if spec.epilogue else []),
        '/bin/bash "$file" 0 &',
        f"for ((i = 1; i < {spec.nodes}; i++)); do",
        '    host="${hosts[i]}"',
        f"    {launch} &",
        "done",
        "wait -n || exit",
        f"sleep {_PATIENCE_S} & patience=$!",
        f"for ((left = 1; left < {spec.nodes}; left++)); do",
        "    wait -n || exit",
        "    kill -0 $patience 2> /dev/null || exit 0",
        "done",
        "kill $patience",
    ]
    lines = ["#!/bin/bash", *directives, STARTED, *_log_to(spec), *write, *look, *run]
    return "\n".join(lines) + "\n"


def load(modules: Sequence[str]) -> list[str]:
    """Lines that load environment modules."""
    if not modules:
        return []
    # jobs are no login shells, where sites define the function
    defined = "command -v module > /dev/null || . /etc/profile || true"
    return [defined, f"module load {shlex.join(modules)}"]


def with_quotes(option: str) -> str:
    """An option as a site says it, in the words of a script's directive.

    A value with spaces is quoted. What is quoted already stays as it is, and so does what may be
    several options, or several values of one.
    """
    parts = _OPTION.fullmatch(option)
    if parts is None or not re.search(r"\s", parts[2]) or re.search(r"['\"\\]|\s-", parts[2]):
        return option
    return f"{parts[1]}{shlex.quote(parts[2])}"


def slots_of(spec: JobSpec) -> int:
    """CPUs of all nodes together."""
    return spec.nodes * spec.cpus_per_node


def clock(seconds: float) -> str:
    """A duration as hours, minutes and seconds, rounded up to minutes."""
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def mebibytes(num_bytes: int) -> int:
    """Memory in MiB, rounded up."""
    return math.ceil(num_bytes / 2**20)


def first_words(file: str | None) -> tuple[str, ...]:
    """Names of a job's hosts out of a file whose lines begin with them, each once.

    Args:
        file: The file; None, or one that is not there, has none.
    """
    try:
        lines = Path(file).read_text().splitlines() if file else []
    except OSError:  # it is on another node
        return ()
    return tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def lines_of(answer: Answer) -> list[str]:
    """Everything that a command said, errors first, without empty lines."""
    lines = f"{answer.error}\n{answer.output}".splitlines()
    return [line.strip() for line in lines if line.strip()]


def told(answer: Answer) -> str:
    """The words of a command that failed, without the name of its program."""
    lines = [_PROGRAM.sub("", line) for line in lines_of(answer)]
    return "; ".join(dict.fromkeys(lines)) or f"exit code {answer.code}"


def _alone(spec: JobSpec) -> list[str]:
    start = shlex.join(spec.command)
    if not spec.epilogue:
        return [f"exec {start}"]
    return ["code=0", f"{start} || code=$?", *spec.epilogue, "exit $code"]


def _on_node(spec: JobSpec, index: str, first: Sequence[str], run: Sequence[str]) -> list[str]:
    exports = [f"export {name}={shlex.quote(value)}" for name, value in spec.environment.items()]
    return [
        *_log_to(spec),
        *first,
        f"cd {shlex.quote(spec.folder)}",
        *exports,
        f"export {INDEX}={index}",
        *load(spec.modules),
        *spec.prologue,
        *run,
    ]


def _log_to(spec: JobSpec) -> list[str]:
    return [f"exec >> {shlex.quote(spec.log)} 2>&1", "set -e"]
