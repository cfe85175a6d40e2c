"""Reads samples in a process of its own: `python -m headrace.views.sample_process FD`.

A shard that is damaged can hang HDF5, and one that is cut short while it is mapped ends the process
that reads it: neither may happen to a server. The process ends when nobody asks for a while.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from headrace.errors import HeadraceError
from headrace.processes import die_with_parent
from headrace.views.samples import Sample, read_sample

IDLE_S = 120.0
"""Seconds without a question after which it ends."""


def main(descriptor: int) -> None:
    """Answer the questions of a connection until there are no more."""
    die_with_parent()
    questions = Connection(descriptor)
    while questions.poll(IDLE_S):
        try:
            question = questions.recv()
        except EOFError:
            return
        try:
            answer: Sample | Exception = read_sample(question)
        except (HeadraceError, OSError) as error:
            answer = error
        questions.send(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
