"""How fast jobs are submitted: a bucket of tokens that all processes of a site share."""

from __future__ import annotations

import json
import time
from pathlib import Path

from filelock import FileLock

from headrace.storage.atomic import write_json

BURST = 4
"""Jobs that may be submitted at once after a pause."""


def tokens_after(tokens: float, passed_s: float, per_minute: int) -> float:
    """Tokens in the bucket when some time has passed; pure.

    Args:
        tokens: Tokens before.
        passed_s: Seconds since then.
        per_minute: Tokens that come in a minute.
    """
    return min(float(BURST), tokens + max(passed_s, 0.0) * per_minute / 60.0)


def take(file: Path, per_minute: int) -> float:
    """Take a token from the bucket, if there is one.

    Args:
        file: The bucket; made when it is not there.
        per_minute: Tokens that come in a minute.

    Returns:
        0 when a token was taken, else seconds until one comes.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(file.with_suffix(".lock"), mode=0o600):
        now = time.time()
        tokens, at = _read(file, now)
        there = tokens_after(tokens, now - at, per_minute)
        if there < 1.0:
            return (1.0 - there) * 60.0 / per_minute
        write_json(file, {"tokens": there - 1.0, "at": now})
    return 0.0


def _read(file: Path, now: float) -> tuple[float, float]:
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError:
        return float(BURST), now
    return float(content["tokens"]), float(content["at"])
