"""The sample of a dataset that somebody wants to see, read by another process."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from headrace.errors import DataError, UserError
from headrace.objects.store import is_remote
from headrace.recipe.access import Sites
from headrace.status.dataset import find_dataset
from headrace_airflow.web import sample_process
from headrace_airflow.web.sample_process import PATIENCE_S
from headrace_airflow.web.samples import Sample, SampleQuestion


def sample_page(name: str, question: SampleQuestion, sites: Sites = None) -> Sample:
    """A sample of a dataset of the ledger, by its fingerprint or name.

    Raises:
        UnknownNameError: There is no such dataset, split or sample; a path is none.
        UserError: The dataset is in an object store.
        DataError: The shard is damaged, missing, or takes too long to read.
    """
    known = find_dataset(name, sites)
    if is_remote(known.location):
        raise UserError(
            f"Samples of {known.location} are not shown: each look would fetch a whole shard",
            "Copy it to a folder and set dataset.path to that, or see headrace inspect URL.",
        )
    placed = {"folder": known.location, "fingerprint": known.fingerprint}
    return _READER.ask(question.model_copy(update=placed))


class SampleReader:
    """Asks a process for samples, one after the other; it is started when there is none."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._command = (sys.executable, "-m", sample_process.__name__, str(patience_s))
        self._lock = threading.Lock()
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    def ask(self, question: SampleQuestion) -> Sample:
        """The sample, or what `read_sample` raises.

        Raises:
            DataError: The process has ended, which it also does when it takes too long.
        """
        with self._lock:
            answer = self._answer(question)
            if answer == 0:  # nobody had asked for a while
                answer = self._answer(question)
        if isinstance(answer, int):
            raise DataError(
                f"Sample {question.index:,} of '{question.split}' in {question.folder} cannot be "
                f"read: the process that reads it ended with code {answer}",
                "`headrace verify` tells whether the dataset is damaged.",
            )
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer(self, question: SampleQuestion) -> Sample | Exception | int:
        """What the process says; its exit code when it has ended."""
        process, questions = self._running = self._running or self._start()
        with suppress(OSError, EOFError):
            questions.send(question)
            answer: Sample | Exception = questions.recv()
            return answer
        self._running = None
        questions.close()
        return process.wait()

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        with theirs:
            descriptor = theirs.fileno()
            command = (*self._command, str(descriptor))
            return subprocess.Popen(command, pass_fds=(descriptor,)), ours


_READER = SampleReader()
