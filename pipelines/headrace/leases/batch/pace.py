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
        tokens: Tokens before; negative when submits are waiting already.
        passed_s: Seconds since then.
        per_minute: Tokens that come in a minute.
    """
    return min(float(BURST), tokens + max(passed_s, 0.0) * per_minute / 60.0)


def take(file: Path, per_minute: int) -> float:
    """Take a token from the bucket.

    Args:
        file: The bucket; made when it is not there.
        per_minute: Tokens that come in a minute.

    Returns:
        Seconds to wait before the token may be used.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(file.with_suffix(".lock"), mode=0o600):
        now = time.time()
        tokens, at = _read(file, now)
        left = tokens_after(tokens, now - at, per_minute) - 1.0
        write_json(file, {"tokens": left, "at": now})
    return max(0.0, -left * 60.0 / per_minute)


def _read(file: Path, now: float) -> tuple[float, float]:
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError:
        return float(BURST), now
    return float(content["tokens"]), float(content["at"])
