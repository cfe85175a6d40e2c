"""GPUs of a machine that no queue gives out: whoever computes there claims them, in turns.

A claim is a file in one folder of the machine, `/tmp/headrace-gpus` or that of `FOLDER`, which is
locked by its process as long as it waits for GPUs or holds them: it ends with the process, however
that ends. Users are trusted as far as to keep to it, as they are with the GPUs themselves.
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
"""Environment variable: the folder of claims, where users of a machine share no `/tmp`."""

_USUAL = "/tmp/headrace-gpus"
_TURN = "turn"
_POLL_S = 0.5
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MOST_BYTES = 2**16


class Claim(Record):
    """What somebody wants of the machine's GPUs, or holds."""

    user: str
    work: str
    since: float = Field(default_factory=time.time)
    count: int = Field(ge=1)
    """GPUs that it needs at once."""
    usable: tuple[str, ...]
    """GPUs that it may have, those that it prefers first."""
    held: tuple[str, ...] = ()
    """GPUs that it has; none while it waits."""


def granted(mine: Claim, others: Sequence[Claim]) -> tuple[str, ...]:
    """GPUs that a waiting claim gets now, none when it is not its turn: a pure decision.

    Users who hold fewer GPUs come first, then who has waited longer. Nobody overtakes a claim for
    GPUs that it could use: a large one gets its own.
    """
    taken = {gpu for claim in others for gpu in claim.held}
    holds = Counter(dict.fromkeys((mine.user, *(claim.user for claim in others)), 0))
    holds.update(claim.user for claim in others for _ in claim.held)
    waiting = [mine, *(claim for claim in others if not claim.held)]
    while True:
        order = [(holds[claim.user], claim.since, at) for at, claim in enumerate(waiting)]
        first = waiting.pop(min(order)[-1])
        free = [gpu for gpu in first.usable if gpu not in taken]
        found = tuple(free[: first.count]) if len(free) >= first.count else ()
        if first is mine:
            return found
        taken.update(found or first.usable)
        holds[first.user] += len(found)


class ClaimFile:
    """A claim of this process, which ends with the block; see `Claim`.

    A `count` of more GPUs than there are asks for all.
    """

    def __init__(self, work: str, usable: Sequence[str], count: int) -> None:
        self.claim = Claim(
            user=login_name(), work=work, usable=tuple(usable), count=min(count, len(usable))
        )
        self._name = f"{os.getpid()}-{secrets.token_hex(8)}.json"
        self._open = ExitStack()

    def __enter__(self) -> ClaimFile:
        with ExitStack() as stack:
            self._folder = _folder()
            # what cleans /tmp of old files leaves a locked folder alone
            fcntl.flock(_opened(stack, self._folder, os.O_DIRECTORY), fcntl.LOCK_SH)
            stack.callback(self._path.unlink, missing_ok=True)
            with self._turn():
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
                self._handle = _opened(stack, self._path, flags)
                fcntl.flock(self._handle, fcntl.LOCK_EX)
                self._write()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def take(self) -> bool:
        """Take GPUs if it is this claim's turn; gives whether it has them now."""
        with self._turn():
            found = granted(self.claim, self._others())
            if found:
                self.claim = self.claim.model_copy(update={"held": found})
                self._write()
        return bool(found)

    def wait(self, folder: StepFolder, keep_on: Callable[[], bool]) -> tuple[str, ...]:
        """The GPUs, when it is this claim's turn.

        Args:
            folder: Of the attempt that waits; its `waits` tells for what meanwhile.
            keep_on: Called twice a second; whether somebody still wants them.

        Raises:
            StepCancelledError: Nobody does.
        """
        told = ""
        try:
            while not self.take():
                if told != (words := self.words()):
                    write_text(folder.waits, words)
                    told = words
                if not keep_on():
                    raise StepCancelledError(f"Nobody waits any more for what {words}")
                time.sleep(_POLL_S)
        finally:
            folder.waits.unlink(missing_ok=True)
        return self.claim.held

    def words(self) -> str:
        """What this claim waits for, as in `waits for 1 GPU of box: ann holds 2, bob 1`."""
        others = self.others()
        usable = set(self.claim.usable)
        holds = Counter(claim.user for claim in others for gpu in claim.held if gpu in usable)
        held = ", ".join(f"{user} holds {count}" for user, count in sorted(holds.items()))
        num_others = sum(not claim.held for claim in others)
        line = f"; {num_others} other{'s wait' if num_others > 1 else ' waits'}" * bool(num_others)
        count = f"{self.claim.count} GPU{'s'[: self.claim.count > 1]}"
        return f"waits for {count} of {socket.gethostname()}: {held or 'others come first'}{line}"

    def others(self) -> list[Claim]:
        """Claims of others."""
        with self._turn():
            return self._others()

    @property
    def _path(self) -> Path:
        return self._folder / self._name

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Nobody else looks or changes anything meanwhile."""
        path = self._folder / _TURN
        with suppress(FileExistsError), ExitStack() as stack:
            _opened(stack, path, os.O_CREAT | os.O_EXCL)
        with ExitStack() as stack:
            fcntl.flock(_opened(stack, path), fcntl.LOCK_EX)
            yield

    def _others(self) -> list[Claim]:
        """Claims whose processes live; files of others are removed."""
        paths = [path for path in self._folder.glob("*.json") if path.name != self._name]
        return [claim for path in paths if (claim := _claim_in(path)) is not None]

    def _write(self) -> None:
        text = self.claim.model_dump_json().encode()
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, text, 0)


def _claim_in(path: Path) -> Claim | None:
    with ExitStack() as stack:
        try:
            handle = _opened(stack, path)
        except OSError as error:  # of somebody who lets nobody read it
            logger.warning("A claim of GPUs cannot be read: %s", error)
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                return Claim.model_validate_json(os.pread(handle, _MOST_BYTES, 0))
            except ValidationError as error:
                logger.warning("%s holds no claim of GPUs: %s", path, words_of(error))
                return None
        with suppress(OSError):  # somebody else's
            path.unlink()
        return None


def _folder() -> Path:
    """The folder of claims, made where it is missing, for all users.

    Raises:
        LeaseError: What lies there is no such folder.
    """
    folder = Path(os.environ.get(FOLDER) or _USUAL)
    with suppress(FileExistsError):
        folder.mkdir(parents=True)
        folder.chmod(0o1777)
    if not stat.S_ISDIR(folder.lstat().st_mode) or not os.access(folder, os.W_OK):
        raise LeaseError(
            f"{folder} is no folder that all users of this machine may write to",
            f"Remove it, or name another one for all of them as {FOLDER}.",
        )
    return folder


def _opened(stack: ExitStack, path: Path, flags: int = os.O_RDONLY) -> int:
    handle = os.open(path, flags | _FLAGS, 0o644)
    stack.callback(os.close, handle)
    if flags & os.O_CREAT:
        os.fchmod(handle, 0o644)  # others read it, whatever the umask says
    return handle
