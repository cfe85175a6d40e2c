"""Whether the file system of a site's folder does what leases need of it."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable
from pathlib import Path

from headrace.batch.findings import Finding, fail, ok
from headrace.files.atomic import publish_folder, write_bytes
from headrace.files.machine import is_full
from headrace.files.sharing import private_mode

_NO_FOLDER = (
    "A bucket mounted by FUSE (s3fs, rclone, Mountpoint) is no shared folder: use NFS, Lustre, "
    "EFS, or S3 Files for a bucket."
)


def locks(folder: Path) -> Finding:
    """Both kinds of lock must be granted once, and flock refused the second time.

    Side effects: as those of `files`.
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


def files(folder: Path) -> Finding:
    """Names must be taken once, files replaced whole, and closed to others.

    Side effects: makes files in a folder of its own in `folder`, and removes them.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".check-") as made:
        for look in (_taken_once, _replaced, _private):
            try:
                problem = look(Path(made))
            except OSError as error:
                if is_full(error):
                    raise
                problem = error.strerror or str(error)
            if problem:
                return fail("files", f"{folder}: {problem}", _NO_FOLDER)
    return ok("files", "taken once, replaced whole, closed to others")


def _taken_once(place: Path) -> str:
    """What submitting a step relies on: a folder's name goes to the first who takes it."""
    for number in ("1", "2"):
        write_bytes(place / f"prepared-{number}" / "spec.json", number.encode())
    taken = [publish_folder(place / f"prepared-{number}", place / "000001") for number in "12"]
    if taken == [True, False] and (place / "000001" / "spec.json").read_bytes() == b"1":
        return ""
    return "a folder replaces another one that is not empty, so steps overwrite each other"


def _replaced(place: Path) -> str:
    """What readers of a status rely on: they see the old file or the new one, whole."""
    file = place / "status.json"
    write_bytes(file, b"old")
    with file.open("rb") as reader:
        write_bytes(file, b"new")
        if (reader.read(), file.read_bytes()) == (b"old", b"new"):
            return ""
    return "a file that is replaced changes under those who read it"


def _private(place: Path) -> str:
    """What the keys of a lease rely on."""
    file = place / "key"
    write_bytes(file, b"secret")
    mode, wanted = file.stat().st_mode & 0o777, private_mode(place)
    return "" if mode == wanted else f"a file made with mode {wanted:o} has {mode:o}"
