"""What this machine keeps imported for later leases is told, and ended when asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.processes import zygote
from headrace.processes.children import Child
from headrace.processes.working_folder import python_module
from headrace.processes.zygote import KEEP_WARM, fork
from support.command_line import headrace


def test_what_is_kept_imported_is_told_and_ended(
    headrace_home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("z")))
    assert headrace("lease", "list").stdout.splitlines() == [
        "No open leases; --all lists ended ones, too."
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), KEEP_WARM: "60"}
    module, log = "support.zygote_code", Path(os.devnull)
    command = python_module(module, "show")
    assert fork([module], Child(name="fork", command=command, log=log, env=environment), wait=True)
    told = headrace("lease", "list").stdout
    assert "Imported for the next ones:" in told
    assert "MB; `headrace lease close --kept`" in told
    assert headrace("lease", "close", "--kept").stdout == "No process stays imported.\n"
    assert not zygote.zygotes()


def test_what_to_close_has_to_be_said(headrace_home: Path) -> None:
    assert "Name a lease, or --kept" in headrace("lease", "close").output
