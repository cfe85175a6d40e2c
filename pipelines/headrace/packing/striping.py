"""Lustre: over how many storage targets each shard is spread, set before the first is written."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from headrace.storage.machine import file_system_of

logger = logging.getLogger(__name__)

_BYTES_A_STRIPE = 2**30  # a shard below that is on one target: many shards spread over all of them
_MAX_STRIPES = 8
_TIMEOUT_S = 60.0


def stripe_command(folder: Path, shard_bytes: int) -> list[str]:
    """The command that has new files in a folder spread by their size.

    Args:
        folder: Folder on Lustre.
        shard_bytes: Size of the largest shard.
    """
    count = min(max(1, -(-shard_bytes // _BYTES_A_STRIPE)), _MAX_STRIPES)
    return ["lfs", "setstripe", "--stripe-count", str(count), str(folder)]


def set_stripes(folder: Path, shard_sizes: Sequence[int]) -> None:
    """Set the striping of a folder on Lustre, when the tool is there; others stay as they are.

    That Lustre refuses is no reason not to pack: it is logged, and its own default holds.

    Args:
        folder: Folder of the shards; must exist.
        shard_sizes: Bytes of each shard that is to be written.
    """
    tool = shutil.which("lfs")
    if tool is None or not shard_sizes:
        return
    if file_system_of(folder) != "lustre":
        return
    command = stripe_command(folder, max(shard_sizes))
    try:
        done = subprocess.run(
            [tool, *command[1:]], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
        problem = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        logger.warning("%s failed, shards are striped as the folder is: %s", command, problem)
