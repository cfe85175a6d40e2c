"""Measures one part, in a process of its own: `python -m headrace.probes.measure REQUEST`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from headrace.errors import StepError
from headrace.files.atomic import read_record, write_record
from headrace.probes.records import Findings
from headrace.probes.requests import Request, answer_file
from headrace.processes.identity import begin_child


def main(arguments: list[str]) -> int:
    """Entry point; the answer is written beside the request."""
    begin_child()
    file = Path(arguments[0])
    request = read_record(file, Request)
    if request is None:
        raise StepError(f"There is no request {file}")
    found: Findings = import_module(f"{__package__}.{request.part}").measure(request)
    write_record(answer_file(file), found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
