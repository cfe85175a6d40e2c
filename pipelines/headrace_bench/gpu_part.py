"""The process of one part of the GPU check: `python -m headrace_bench.gpu_part TARGET FOLDER`.

It calls the function TARGET, `module:name`, with the folder, and leaves there what it returns.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
from pathlib import Path
from pkgutil import resolve_name

from headrace.cli.console import tidy_end
from headrace.errors import shortened
from headrace.files.atomic import write_record
from headrace.processes.identity import begin_child
from headrace_bench.gpu_rows import PartRows

logger = logging.getLogger(__name__)

ROWS = "rows.json"
"""File in the folder with `PartRows`."""

_MAX_CHARS = 400


def main(arguments: list[str]) -> int:
    """Entry point of a part; gives 1 after an error, whose trace is in the log."""
    begin_child()
    faulthandler.enable()
    target, folder = arguments[0], Path(arguments[1])
    try:
        with tidy_end():
            found = PartRows(rows=tuple(resolve_name(target)(folder)))
    except Exception as error:
        logger.exception("%s failed", target)
        found = PartRows(problem=shortened(f"{type(error).__name__}: {error}", _MAX_CHARS))
    write_record(folder / ROWS, found)
    return 1 if found.problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
