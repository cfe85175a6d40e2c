"""What a job of a pool does first: nothing when it comes too late or its node is no good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.clusters import worker
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role
from support.leases import lease_spec

CONTAINER = {"container": {"runtime": "apptainer", "image": "/images/torch.sif"}}


@pytest.mark.parametrize(
    ("batch", "arguments", "is_closed", "is_fit", "code", "done"),
    [
        ({}, (), False, True, 0, ["looked at", "served"]),
        ({}, (), False, False, 1, ["looked at"]),
        ({}, (), True, True, 0, []),
        (CONTAINER, (), False, True, 0, ["looked at", "apptainer"]),
        (CONTAINER, ("--inside",), False, False, 0, ["served"]),
    ],
)
def test_a_node_of_a_pool(
    batch: dict[str, Any],
    arguments: tuple[str, ...],
    is_closed: bool,
    is_fit: bool,
    code: int,
    done: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a container it is looked at outside, and serves inside."""
    seen: list[str] = []
    folder = SiteFolder(tmp_path).lease("a-1")
    role = Role.model_validate({"backend": "slurm", "batch": batch})
    write_record(folder.spec, lease_spec(folder, role))
    if is_closed:
        write_text(folder.close, "enough")

    def looked_at(*_: object) -> bool:
        seen.append("looked at")
        return is_fit

    def executed(program: str, command: list[str], _: object) -> None:
        assert list(command[-3:]) == [str(folder.path), "3", "--inside"]
        seen.append(program)
        raise SystemExit(0)  # nothing of this process is left

    async def served(lease: LeaseFolder, _: object, number: int) -> None:
        assert (lease.path, number) == (folder.path, 3)
        seen.append("served")

    monkeypatch.setattr(worker, "_is_fit", looked_at)
    monkeypatch.setattr(worker, "_serve", served)
    monkeypatch.setattr(worker.os, "execvpe", executed)
    try:
        ended = worker.main([str(folder.path), "3", *arguments])
    except SystemExit as left:
        ended = left.code
    assert (ended, seen) == (code, done)
