"""Whether the file system of a site's folder supports what leases need."""

from __future__ import annotations

import fcntl
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.batch.commands import answer_of
from headrace.batch.findings import Finding, fail, ok, warn
from headrace.files.atomic import publish_folder, write_bytes
from headrace.files.machine import is_full, mounted
from headrace.files.sharing import private_mode

_NO_FOLDER = (
    "A bucket mounted by FUSE (s3fs, rclone, Mountpoint) cannot be the shared folder: use NFS, "
    "Lustre, EFS, or S3 Files for a bucket."
)
_LFS_TIMEOUT_S = 30.0
_STRIPES = re.compile(r"stripe_count:\s*(-?\d+)")


def locks(folder: Path) -> Finding:
    """Check that both kinds of lock are granted once, and flock is refused the second time.

    Side effects: see `files`.
    """
    kinds: dict[str, Callable[[int, int], None]] = {"fcntl": fcntl.lockf, "flock": fcntl.flock}
    advice = "Ask for a mount with locks: `flock` on Lustre, not `nolock` on NFS."
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".check-") as probe:
        for name, lock in kinds.items():
            with open(probe.name, "r+b") as first, open(probe.name, "r+b") as second:
                try:
                    lock(first.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    return fail("locks", f"{name} in {folder}: {error.strerror or error}", advice)
                try:
                    lock(second.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return ok("locks", "flock and fcntl")  # fcntl's are the process's own
    return fail("locks", f"flock in {folder} is granted twice", advice)


def lustre(folder: Path) -> Iterator[Finding]:
    """Check mount options and layout of new files on Lustre; see mount.lustre(8), lfs(1)."""
    kind, options = mounted(folder.resolve())
    if kind != "lustre":
        return
    if "localflock" in options.split(","):
        found = f"{folder} is mounted with `localflock`: locks do not reach other machines"
        yield fail("lustre", found, "Ask for a mount with `flock`.")
    command = ("lfs", "getstripe", "-d", str(folder))
    if (answer := answer_of(command, _LFS_TIMEOUT_S)).code != 0:
        yield warn("stripes", f"unknown: {answer.words}", f"Run `{' '.join(command)}` on a node.")
        return
    counts = {int(count) for count in _STRIPES.findall(answer.output)}
    if counts <= {0, 1}:
        found = f"new files in {folder} lie on one OST each, images and large shards too"
        advice = f"Let files grow over more: `lfs setstripe -E 1G -c 1 -E -1 -c 8 {folder}`."
        yield warn("stripes", found, advice)
    else:
        yield ok("stripes", f"files on up to {'all' if -1 in counts else max(counts)} OSTs")


def files(folder: Path) -> Finding:
    """Check that names are taken once, files replaced whole, and closed to others.

    Side effects: makes files in a temporary folder in `folder`, and removes them.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".check-") as made:
        for check in (_taken_once, _replaced, _private):
            try:
                problem = check(Path(made))
            except OSError as error:
                if is_full(error):
                    raise
                problem = error.strerror or str(error)
            if problem:
                return fail("files", f"{folder}: {problem}", _NO_FOLDER)
    return ok("files", "taken once, replaced whole, closed to others")


def _taken_once(folder: Path) -> str:
    """Check what submitting a step relies on: only the first rename to a folder's name succeeds."""
    for number in ("1", "2"):
        write_bytes(folder / f"prepared-{number}" / "spec.json", number.encode())
    taken = [publish_folder(folder / f"prepared-{number}", folder / "000001") for number in "12"]
    if taken == [True, False] and (folder / "000001" / "spec.json").read_bytes() == b"1":
        return ""
    return "a folder replaces another one that is not empty, so steps overwrite each other"


def _replaced(folder: Path) -> str:
    """Check what readers of a status rely on: they read the old file or the new one, whole."""
    file = folder / "status.json"
    write_bytes(file, b"old")
    with file.open("rb") as reader:
        write_bytes(file, b"new")
        if (reader.read(), file.read_bytes()) == (b"old", b"new"):
            return ""
    return "a replaced file changes for processes that are reading it"


def _private(folder: Path) -> str:
    """Check what the keys of a lease rely on."""
    file = folder / "key"
    write_bytes(file, b"secret")
    mode, wanted = file.stat().st_mode & 0o777, private_mode(folder)
    return "" if mode == wanted else f"a file made with mode {wanted:o} has {mode:o}"
