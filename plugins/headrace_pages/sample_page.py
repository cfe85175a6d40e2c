"""A sample of a dataset for a user, read by another process."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import DataError, MemoryExhaustedError, UserError, WorkerLostError
from headrace.objects.store import is_remote
from headrace.processes.call_server import CallServer
from headrace.processes.children import Child, start_program
from headrace.processes.working_folder import python_module
from headrace.recipe.teams import Sites
from headrace.status.dataset import find_dataset
from headrace_pages import sample_process
from headrace_pages.sample_process import PATIENCE_S
from headrace_pages.samples import Sample, SampleQuestion


def sample_page(name: str, question: SampleQuestion, sites: Sites = None) -> Sample:
    """Return a sample of a dataset of the ledger, by its fingerprint or name.

    Raises:
        UnknownNameError: No dataset, split or sample has that name; no paths are accepted.
        UserError: The dataset is in an object store.
        DataError: The shard is damaged, missing, or takes too long to read.
    """
    known = find_dataset(name, sites)
    if is_remote(known.location):
        raise UserError(
            f"Samples of {known.location} are not shown: each view would download a whole shard",
            "Copy it to a folder and set dataset.path to the folder, or see headrace inspect URL.",
        )
    placed = {"folder": known.location, "fingerprint": known.fingerprint}
    return _READER.ask(question.model_copy(update=placed))


class SampleProcess:
    """Requests samples from a process, one after another, and starts the process if needed."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        command = python_module(sample_process.__name__, str(patience_s))
        self._child = Child(name="reader of samples", command=command, log=Path(os.devnull))
        self._process = CallServer(start_program)

    def ask(self, question: SampleQuestion) -> Sample:
        """Return the sample, or raise as `read_sample` does.

        Raises:
            DataError: The process has ended, for example because it took too long.
        """
        try:
            sample: Sample = self._process.call(self._child, question, lambda: True)
        except (WorkerLostError, MemoryExhaustedError) as error:
            raise DataError(
                f"Sample {question.index:,} of '{question.split}' in {question.folder} cannot be "
                f"read: {error.what}",
                "`headrace verify` shows whether the dataset is damaged.",
            ) from error
        return sample


_READER = SampleProcess()
