"""Reservations of GPUs on a machine without a queue, in a fair order.

A reservation is a file in one folder of the machine, `/tmp/headrace-gpus` or that of `FOLDER`, and
is locked by its process while it waits for GPUs or holds them: it ends with the process, however
that ends. Users are trusted to respect it, as they are trusted with the GPUs themselves.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pydantic import Field, ValidationError

from headrace.errors import LeaseError, StepCancelledError, words_of
from headrace.files.atomic import write_text
from headrace.files.layout import StepFolder
from headrace.recipe.unix_accounts import login_name
from headrace.record import Record

logger = logging.getLogger(__name__)

FOLDER = "HEADRACE_GPU_CLAIMS"
"""Environment variable: the folder of reservations, if users of a machine share no `/tmp`."""

_DEFAULT = "/tmp/headrace-gpus"
_MUTEX = "turn"
_POLL_S = 0.5
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MOST_BYTES = 2**16


class GpuReservation(Record):
    """A user's request for GPUs of the machine, or the GPUs that it holds."""

    user: str
    work: str
    since: float = Field(default_factory=time.time)
    count: int = Field(ge=1)
    """GPUs that it needs at once."""
    usable: tuple[str, ...]
    """GPUs that it may use, the preferred ones first."""
    held: tuple[str, ...] = ()
    """GPUs that it holds; empty while it waits."""


def granted(mine: GpuReservation, others: Sequence[GpuReservation]) -> tuple[str, ...]:
    """Return the GPUs that a waiting reservation gets now, empty if it must wait; pure.

    Users who hold fewer GPUs come first, then the longest wait. GPUs that a waiting reservation
    could use go to no later one, so that a large one gets its GPUs.
    """
    taken = {gpu for each in others for gpu in each.held}
    holds = Counter(dict.fromkeys((mine.user, *(each.user for each in others)), 0))
    holds.update(each.user for each in others for _ in each.held)
    waiting = [mine, *(each for each in others if not each.held)]
    while True:
        order = [(holds[each.user], each.since, at) for at, each in enumerate(waiting)]
        first = waiting.pop(min(order)[-1])
        free = [gpu for gpu in first.usable if gpu not in taken]
        found = tuple(free[: first.count]) if len(free) >= first.count else ()
        if first is mine:
            return found
        taken.update(found or first.usable)
        holds[first.user] += len(found)


class ReservationFile:
    """A reservation of this process, which ends with the block; see `GpuReservation`.

    A `count` above the number of GPUs requests all.
    """

    def __init__(self, work: str, usable: Sequence[str], count: int) -> None:
        self.reservation = GpuReservation(
            user=login_name(), work=work, usable=tuple(usable), count=min(count, len(usable))
        )
        self._name = f"{os.getpid()}-{secrets.token_hex(8)}.json"
        self._open = ExitStack()

    def __enter__(self) -> ReservationFile:
        with ExitStack() as stack:
            self._folder = _folder()
            # programs that remove old files from /tmp skip a locked folder
            fcntl.flock(_opened(stack, self._folder, os.O_DIRECTORY), fcntl.LOCK_SH)
            stack.callback(self._path.unlink, missing_ok=True)
            with self._exclusive():
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
                self._handle = _opened(stack, self._path, flags)
                fcntl.flock(self._handle, fcntl.LOCK_EX)
                self._write()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def take(self) -> bool:
        """Take GPUs if the order allows it; return whether this reservation has them now."""
        with self._exclusive():
            found = granted(self.reservation, self._others())
            if found:
                self.reservation = self.reservation.model_copy(update={"held": found})
                self._write()
        return bool(found)

    def wait(self, folder: StepFolder, keep_on: Callable[[], bool]) -> tuple[str, ...]:
        """Wait for the GPUs and return them; raise StepCancelledError if `keep_on()` is false.

        It is called twice a second. The file `waits` of the attempt in `folder` holds the reason.
        """
        written = ""
        try:
            while not self.take():
                if written != (words := self.words()):
                    write_text(folder.waits, words)
                    written = words
                if not keep_on():
                    raise StepCancelledError(f"The attempt was ended while it {words}")
                time.sleep(_POLL_S)
        finally:
            folder.waits.unlink(missing_ok=True)
        return self.reservation.held

    def words(self) -> str:
        """Return the reason of the wait, as `waits for 1 GPU of box: ann holds 2, bob 1`."""
        others = self.others()
        usable = set(self.reservation.usable)
        holds = Counter(each.user for each in others for gpu in each.held if gpu in usable)
        held = ", ".join(f"{user} holds {count}" for user, count in sorted(holds.items()))
        num_others = sum(not each.held for each in others)
        line = f"; {num_others} other{'s wait' if num_others > 1 else ' waits'}" * bool(num_others)
        count = f"{self.reservation.count} GPU{'s'[: self.reservation.count > 1]}"
        return f"waits for {count} of {socket.gethostname()}: {held or 'others come first'}{line}"

    def others(self) -> list[GpuReservation]:
        """Return reservations of other processes."""
        with self._exclusive():
            return self._others()

    @property
    def _path(self) -> Path:
        return self._folder / self._name

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Exclude reads and changes by other processes."""
        path = self._folder / _MUTEX
        with suppress(FileExistsError), ExitStack() as stack:
            _opened(stack, path, os.O_CREAT | os.O_EXCL)
        with ExitStack() as stack:
            fcntl.flock(_opened(stack, path), fcntl.LOCK_EX)
            yield

    def _others(self) -> list[GpuReservation]:
        """Return reservations of living processes; remove the files of others."""
        paths = [path for path in self._folder.glob("*.json") if path.name != self._name]
        return [each for path in paths if (each := _reservation_in(path)) is not None]

    def _write(self) -> None:
        text = self.reservation.model_dump_json().encode()
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, text, 0)


def _reservation_in(path: Path) -> GpuReservation | None:
    with ExitStack() as stack:
        try:
            handle = _opened(stack, path)
        except OSError as error:  # of a user who lets others not read it
            logger.warning("A reservation of GPUs cannot be read: %s", error)
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                return GpuReservation.model_validate_json(os.pread(handle, _MOST_BYTES, 0))
            except ValidationError as error:
                logger.warning("%s does not hold a reservation of GPUs: %s", path, words_of(error))
                return None
        with suppress(OSError):  # of another user
            path.unlink()
        return None


def _folder() -> Path:
    """Return the folder of reservations, made for all users; raise LeaseError if it is not."""
    folder = Path(os.environ.get(FOLDER) or _DEFAULT)
    with suppress(FileExistsError):
        folder.mkdir(parents=True)
        folder.chmod(0o1777)
    if not stat.S_ISDIR(folder.lstat().st_mode) or not os.access(folder, os.W_OK):
        raise LeaseError(
            f"{folder} must be a folder that all users of this machine may write to",
            f"Remove it, or set {FOLDER} to another folder for all of them.",
        )
    return folder


def _opened(stack: ExitStack, path: Path, flags: int = os.O_RDONLY) -> int:
    handle = os.open(path, flags | _FLAGS, 0o644)
    stack.callback(os.close, handle)
    if flags & os.O_CREAT:
        os.fchmod(handle, 0o644)  # others read it, whatever the umask says
    return handle
