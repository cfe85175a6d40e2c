"""Reads samples in a process of its own.

`python -m headrace_airflow.web.sample_process SECONDS FD` starts it.

A shard that is damaged can hang HDF5, and one that is cut short while it is mapped ends the process
that reads it: neither may happen to a server. The process ends when nobody asks for a while, and by
an alarm when it takes too long. Who asks may be a thread of the server that soon ends.
"""

from __future__ import annotations

import signal
import sys
from multiprocessing.connection import Connection

from headrace.errors import HeadraceError
from headrace_airflow.web.samples import Sample, read_sample

PATIENCE_S = 20.0
"""Seconds that reading a sample may take."""

IDLE_S = 120.0
"""Seconds without a question after which it ends."""


def main(patience_s: float, descriptor: int) -> None:
    """Answer the questions of a connection until there are no more."""
    questions = Connection(descriptor)
    while questions.poll(IDLE_S):
        try:
            question = questions.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, patience_s)
        try:
            answer: Sample | Exception = read_sample(question)
        except (HeadraceError, OSError) as error:
            answer = error
        signal.setitimer(signal.ITIMER_REAL, 0)
        questions.send(answer)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
