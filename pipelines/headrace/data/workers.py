"""Worker processes: batches of per-sample Python by all cores, equal to those of threads.

A rank forks their server when it begins, while it has no threads, no GPU and no weights. A worker
makes the user's objects again, as each rank does, so that none shares an open file. Order and
position stay in the rank: it sends the positions of a batch, and copies the batch out of the
worker's memory.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, _utils

from headrace.data.dataset import SampleReader
from headrace.data.gather import Buffers
from headrace.data.sampling import Indices
from headrace.data.transforms import Batch
from headrace.errors import MemoryExhaustedError, UserError, WorkerLostError, shortened
from headrace.processes.call_server import CallServer, answer_calls
from headrace.processes.children import Child, Process
from headrace.processes.forking import ForkServer, request
from headrace.processes.identity import die_with_parent, set_name

logger = logging.getLogger(__name__)

_MUCH_WAIT, _LEAST_GAIN_S = 0.1, 10.0
_LEAST_SEEN, _LEAST_SEEN_S = 8, 2.0
_ALIGNED = 64
_IDLE_S, _SERVER_IDLE_S = 600.0, 1e6
_MEMORY = object()
"""Stands for the memory that a worker shares with its rank."""
_FEWER = "Lower data.workers, or write 0: threads then make the batches. "

ReaderOf = Callable[[str], SampleReader]
"""Makes the reader of a split; called in each worker."""

Make = Callable[[Indices, Sequence[int] | None], Batch]
"""Makes a batch, as `SampleReader.read`."""


def workers_pay(waited_s: float, used_s: float, num_batches: int, left: int) -> bool:
    """Whether processes pay for `left` batches, by the times of `num_batches` made by threads.

    Much of the time must be waiting, and all of it longer than the start of the user's code.
    """
    is_much = waited_s >= _MUCH_WAIT * (waited_s + used_s)
    return is_much and waited_s / num_batches * left >= _LEAST_GAIN_S


class Workers:
    """Processes that make batches for all loaders of a rank; they end with this object.

    With `is_auto` threads begin, and processes follow if they pay for the `num_batches` of the run
    (None: unknown). A thread then makes what a process cannot, and threads go on alone.

    Attributes:
        are_used: Whether processes make the batches at present.
        notes: What makes the batches; empty for threads from the start on.
    """

    def __init__(
        self, reader_of: ReaderOf, count: int, *, is_auto: bool, num_batches: int | None
    ) -> None:
        self.count = count
        self.are_used = False
        self.notes: dict[str, str] = {}
        self._is_auto, self._num_batches = is_auto, num_batches
        self._waited_s, self._used_s, self._num, self._num_seen = 0.0, 0.0, 0, 0
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files = [os.memfd_create("headrace-batch") for _ in range(count)]
        sys.stdout.flush()  # otherwise each worker writes it again
        with theirs, warnings.catch_warnings():
            # the server does not use what threads, as those of a script, may have locked
            warnings.simplefilter("ignore", DeprecationWarning)
            if os.fork() == 0:
                channel.close()
                _serve(theirs, count, reader_of)
        weakref.finalize(self, channel.close)  # all end by that
        self._turns = cycle([_Worker(channel, *each) for each in enumerate(files)])
        if not is_auto:
            self._begin()

    def maker(self, reader: SampleReader) -> Make:
        """Return a function that has the next worker make batches of the split of `reader`.

        Raises as `SampleReader.read`. If the worker has ended, unless `is_auto`: `WorkerLostError`,
        or `MemoryExhaustedError` if the kernel killed it for memory.
        """
        worker = next(self._turns)

        def make(indices: Indices, seeds: Sequence[int] | None) -> Batch:
            try:
                return worker.make(reader.dataset.split, indices, seeds)
            except Exception as error:
                if not self._is_auto:
                    raise
                why = shortened(str(error).partition("\n")[0])
            batch = reader.read(indices, seeds)  # raises the same if the user's code is wrong
            self.are_used, self.notes["batches"] = False, f"made by threads, since {why}"
            logger.warning("Threads make the batches from now on: %s", why)
            return batch

        return make

    def saw(self, waited_s: float, used_s: float, done: int) -> None:
        """Count a training batch, the `done`-th of the run; begin to use processes if they pay."""
        self._waited_s, self._used_s = self._waited_s + waited_s, self._used_s + used_s
        self._num, self._num_seen = self._num + 1, self._num_seen + 1
        is_short = self._num < _LEAST_SEEN or self._waited_s + self._used_s < _LEAST_SEEN_S
        if "batches" in self.notes or is_short:
            return
        left = self._num_seen if self._num_batches is None else self._num_batches - done
        if workers_pay(self._waited_s, self._used_s, self._num, left):
            self._begin()
        self._waited_s, self._used_s, self._num = 0.0, 0.0, 0

    def _begin(self) -> None:
        self.are_used, self.notes["batches"] = True, f"made by {self.count} processes"


class _Worker:
    """The rank's side of a worker; `file` is the memory that both share."""

    def __init__(self, channel: socket.socket, number: int, file: int) -> None:
        processes: list[Process] = []

        def start(child: Child) -> Process:
            process = request(channel, child)
            if process is None:
                raise WorkerLostError(f"The server of {child.name} has ended")
            processes.append(process)
            return process

        self._file, self._processes = file, processes
        self._server = CallServer(start)
        log = Path(os.readlink("/proc/self/fd/1"))
        log = log if log.is_file() else Path(os.devnull)
        self._child = Child(name=f"worker {number}", command=(), log=log, output=1)
        self._buffers = Buffers()
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, file)

    def make(self, split: str, indices: Indices, seeds: Sequence[int] | None) -> Batch:
        """Return a batch; several threads may call this at once."""
        asked = (self._file, torch.get_default_dtype(), split, indices, seeds)
        with self._lock:
            try:
                content, num_bytes = self._server.call(self._child, asked, lambda: True)
            except (WorkerLostError, MemoryExhaustedError) as error:
                pid = self._processes[-1].pid if self._processes else "unknown"
                what = f"{error.what}: process {pid} of data.workers"
                raise type(error)(what, _FEWER + error.hint) from error
            memory = self._buffers.lend(num_bytes)
            memory.copy_(_shared(self._file, num_bytes))
        batch: Batch = _Unpacker(content, memory).load()
        return batch


def _serve(channel: socket.socket, count: int, reader_of: ReaderOf) -> None:
    """Be the server of the workers, and each worker; do not return."""
    try:
        die_with_parent()
        set_name("workers")
        if (child := ForkServer(channel).serve(_SERVER_IDLE_S)) is not None:
            die_with_parent()
            torch.set_num_threads(1)
            number = int(child.name.split()[1])
            _utils.worker._worker_info = _utils.worker.WorkerInfo(  # noqa: SLF001  of DataLoader
                id=number, num_workers=count, seed=torch.seed(), dataset=Dataset[Any]()
            )
            answer_calls(partial(_answer, reader_of, {}), _IDLE_S)
    except BaseException:
        logger.exception("A process that makes batches failed")
        os._exit(1)
    os._exit(0)


def _answer(
    reader_of: ReaderOf, readers: dict[str, SampleReader], request: tuple[Any, ...]
) -> tuple[bytes, int]:
    file, dtype, split, indices, seeds = request
    torch.set_default_dtype(dtype)
    if split not in readers:
        readers[split] = reader_of(split)
    batch = readers[split].read(indices, seeds)
    sys.stdout.flush()
    return _packed(batch, file)


def _shared(file: int, num_bytes: int) -> Tensor:
    """Return the first bytes of a worker's memory, `(num_bytes,) uint8`."""
    path = f"/proc/self/fd/{file}"
    return torch.from_file(path, shared=True, size=max(num_bytes, 1), dtype=torch.uint8)[:num_bytes]


def _packed(batch: Batch, file: int) -> tuple[bytes, int]:
    """Return a batch without the bytes of its tensors, and their number; write them to `file`."""
    stream = io.BytesIO()
    packer = _Packer(stream)
    try:
        packer.dump(batch)
    except Exception as error:
        raise UserError(
            f"A batch cannot leave the process that made it: {type(error).__name__}: {error}",
            "Let data.collate, sample_transforms and dataset return tensors, arrays, numbers and "
            "texts, or set data.workers: 0.",
        ) from error
    memory = _shared(file, packer.num_bytes)
    for start, part in packer.parts:
        memory[start : start + len(part)] = part
    return stream.getvalue(), packer.num_bytes


class _Packer(pickle.Pickler):
    """Pickles a batch without the bytes of its tensors: `parts`, each with its first byte."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5)
        self.parts: list[tuple[int, Tensor]] = []
        self.num_bytes = 0

    def persistent_id(self, value: Any) -> object:
        """Return True for the memory, which is not pickled."""
        return True if value is _MEMORY else None

    def reducer_override(self, value: Any) -> Any:
        """Return how to make a tensor again from the memory; other values are pickled."""
        if type(value) is not Tensor or value.layout is not torch.strided or value.requires_grad:
            return NotImplemented
        # with the same strides, because kernels are chosen by them
        dense = value.permute(sorted(range(value.ndim), key=value.stride, reverse=True))
        if not dense.is_contiguous() or value.is_conj() or value.is_neg():
            return NotImplemented
        part, start = dense.reshape(-1).view(torch.uint8), -(-self.num_bytes // _ALIGNED) * _ALIGNED
        self.parts.append((start, part))
        self.num_bytes = start + len(part)
        form = value.dtype, tuple(value.shape), value.stride()
        return _placed, (_MEMORY, slice(start, self.num_bytes), *form)


class _Unpacker(pickle.Unpickler):
    """Makes the batch again; its tensors lie in `memory (num_bytes,) uint8`."""

    def __init__(self, content: bytes, memory: Tensor) -> None:
        super().__init__(io.BytesIO(content))
        self._memory = memory

    def persistent_load(self, _: Any) -> Tensor:
        """Return the memory."""
        return self._memory


def _placed(
    memory: Tensor, part: slice, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]
) -> Tensor:
    return memory[part].view(dtype).as_strided(shape, strides)
