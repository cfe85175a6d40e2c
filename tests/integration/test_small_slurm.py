"""The small Slurm of `deploy/slurm-dev` by itself."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest
import slurm_dev
from slurm_dev_daemons import Daemons
from slurm_dev_files import Shape

from headrace.processes.identity import die_with_parent


@pytest.mark.skipif(bool(slurm_dev.why_not()), reason=slurm_dev.why_not() or "it can run")
def test_its_database_leaves_those_of_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    table_of_another = tmp_path / "#sql-temptable-1-1-1.MAD"
    table_of_another.touch()
    with tempfile.TemporaryDirectory(prefix="headrace-db-", dir="/tmp") as folder:
        daemons = Daemons(Path(folder), before=lambda: die_with_parent(signal.SIGKILL))
        try:
            slurm_dev._start_database(Shape(folder=Path(folder), host="localhost", port=0), daemons)
        finally:
            daemons.stop()
    assert table_of_another.exists()
