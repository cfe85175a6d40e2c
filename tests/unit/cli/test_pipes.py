"""Output whose reader has left is dropped; other output that cannot be written is an error."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ENDLESS = """
import os, sys
from headrace.cli.console import outlive_readers, output_is_gone
outlive_readers()
stream = getattr(sys, sys.argv[1])
for number in range(10**9):
    print("line", number, file=stream, flush=True)
    if stream.buffer.raw.is_gone:
        break
print("more", file=stream)
sys.exit(30 + output_is_gone())
"""


HUNG_UP = """
import sys
from headrace.cli.console import open_console, outlive_readers, output_is_gone
outlive_readers()
console = open_console()
assert not output_is_gone()
print("up", flush=True)
sys.stdin.read(1)
assert output_is_gone()
console.print("more")
print("errors", file=sys.stderr, flush=True)
print("and more", flush=True)
sys.exit(30 + output_is_gone())
"""


@pytest.mark.parametrize(("stream", "code"), [("stdout", 31), ("stderr", 30)])
def test_a_closed_pipe_is_no_error_and_is_known(stream: str, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, stream],
        **{stream: subprocess.PIPE},  # type: ignore[call-overload]
        text=True,
    )
    pipe = getattr(process, stream)
    assert pipe.readline() == "line 0\n"
    pipe.close()
    assert process.wait(60) == code


def test_a_closed_terminal_is_no_error_and_is_known_before_anything_is_written() -> None:
    ours, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", HUNG_UP], stdin=subprocess.PIPE, stdout=its, stderr=its
    ) as process:
        os.close(its)
        assert os.read(ours, 2) == b"up"
        os.close(ours)
        process.communicate(b".")
    assert process.returncode == 31


def test_encoding_and_what_was_printed_before_are_kept() -> None:
    code = (
        "import sys; print('first'); from headrace.cli.console import outlive_readers\n"
        "before = sys.stdout.encoding; outlive_readers()\n"
        "print('second é', sys.stdout.encoding == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.decode() == "first\nsecond é True\n"


@pytest.mark.parametrize(
    ("output", "reason"),
    [("/dev/full", "No space left on device"), ("&-", "Bad file descriptor")],
)
@pytest.mark.parametrize("words", ["--version", "--help", "runs", "runs --json", "schema site"])
def test_output_that_cannot_be_written_is_one_line_and_an_error(
    words: str, output: str, reason: str, tmp_path: Path
) -> None:
    code = "from headrace.cli.app import main; main()"
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -c "$1" {words} >{output}', sys.executable, code],
        env={**os.environ, "HEADRACE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stderr == f"error: standard output cannot be written: {reason}\n"
    assert done.returncode == 1


def test_output_that_cannot_be_written_ends_no_work() -> None:
    code = (
        "import os, sys; from headrace.cli.console import outlive_readers, output_problem\n"
        "outlive_readers(); print('x' * 10**6); print('more', flush=True)\n"
        "print(output_problem().strerror, file=sys.stderr)"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"No space left on device\n")
