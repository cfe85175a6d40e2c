"""`python -m headrace.processes -- COMMAND…` runs a command that dies with its parent."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from headrace.errors import UserError
from headrace.processes.identity import die_with_parent, take_part
from headrace.processes.working_folder import CODE, FOLDER


def main(arguments: Sequence[str]) -> None:
    """Become the command; the kernel keeps the request to die with the parent over the exec.

    Raises:
        UserError: The command is missing.
    """
    if arguments[:1] != ["--"] or len(arguments) < 2:
        raise UserError(
            f"No command in {list(arguments)}", "Call python -m headrace.processes -- COMMAND…"
        )
    die_with_parent()
    take_part()
    path = [os.environ.pop(CODE, ""), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        each if os.pathsep in each else os.path.abspath(each) for each in path if each
    )
    os.chdir(os.environ.get(FOLDER, "."))
    os.execvp(arguments[1], list(arguments[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
