"""What a process that runs a model is forked as."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headrace.processes.children import Child
from headrace.processes.working_folder import python_module
from headrace.steps import model_process


def test_a_model_that_reads_the_command_line_sees_that_of_its_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As loggers do, and parsers of arguments; not that of what it was forked from."""
    seen: list[list[str]] = []
    module = ModuleType("rank_of_a_test")
    module.main = lambda _: seen.append(list(sys.argv)) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    command = python_module(module.__name__, "node.json", "3")
    child = Child(name="rank 3", command=command, log=Path(os.devnull))
    monkeypatch.setattr(model_process, "forked", lambda connection: connection.close() or child)
    monkeypatch.setattr(sys, "argv", ["zygote.py", "13", " " * 1024])
    ours, theirs = socket.socketpair()
    with ours:
        assert model_process.main([str(theirs.detach())]) == 0
    assert seen == [["rank_of_a_test", "node.json", "3"]]
