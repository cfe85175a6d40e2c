"""What the ranks of a node are forked from: `python -m headrace.training.ranks FD`."""

from __future__ import annotations

import os
import socket
import sys

from lightning.pytorch.utilities import rank_zero_only

from headrace.processes import die_with_parent
from headrace.steps.forking import forked
from headrace.training import rank


def main(arguments: list[str]) -> int:
    """Entry point of the server, and of each rank.

    Args:
        arguments: Number of the open socket to the node's worker.
    """
    die_with_parent()
    request = forked(socket.socket(fileno=int(arguments[0])))
    if request is None:
        return 0
    rank_zero_only.rank = int(os.environ["RANK"])  # as Lightning takes it when it is imported
    return rank.main(list(request.command[-1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
