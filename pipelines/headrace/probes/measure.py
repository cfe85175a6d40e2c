"""Measures one part, in a process of its own: `python -m headrace.probes.measure REQUEST`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from headrace.errors import StepError
from headrace.files.atomic import read_record, write_record
from headrace.probes.records import Findings
from headrace.probes.requests import Request, answer_file
from headrace.processes import begin_child

_MODULES = {
    "gemm": "headrace.probes.gemm",
    "memory": "headrace.probes.memory",
    "network": "headrace.probes.network",
    "storage": "headrace.probes.storage",
    "train": "headrace.probes.train",
}


def main(arguments: list[str]) -> int:
    """Entry point; the answer is written beside the request."""
    begin_child()
    file = Path(arguments[0])
    request = read_record(file, Request)
    if request is None:
        raise StepError(f"There is no request {file}")
    found: Findings = importlib.import_module(_MODULES[request.part]).measure(request)
    write_record(answer_file(file), found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
