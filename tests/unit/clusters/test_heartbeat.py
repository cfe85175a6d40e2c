"""The host's sign of life outlasts what passes, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from headrace.clusters.host import keep_heartbeat
from headrace.clusters.lease_files import last_heartbeat
from headrace.clusters.lease_records import LeaseSpec
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    """A lease whose heartbeat cannot be written: a folder is in its way."""
    lease = SiteFolder(tmp_path).lease("demo-gpu-1")
    write_record(lease.spec, _spec(lease))
    (lease.heartbeat / "in-the-way").mkdir(parents=True)
    return lease


def _spec(lease: LeaseFolder, lost_after_s: float = 60.0) -> LeaseSpec:
    return LeaseSpec(
        lease_id=lease.lease_id, key="demo/gpu", run_id="demo", role_name="gpu", role=Role(),
        heartbeat_s=0.01, lost_after_s=lost_after_s,
    )  # fmt: skip


def test_a_heartbeat_that_cannot_be_written_is_tried_again(
    folder: LeaseFolder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def mend_and_remove() -> None:
        beating = asyncio.create_task(keep_heartbeat(folder, _spec(folder)))
        while "trying again" not in caplog.text:
            await asyncio.sleep(0.01)
        (folder.heartbeat / "in-the-way").rmdir()
        folder.heartbeat.rmdir()
        while not folder.heartbeat.is_file():
            await asyncio.sleep(0.01)
        folder.spec.unlink()
        await beating

    asyncio.run(asyncio.wait_for(mend_and_remove(), 30))
    assert last_heartbeat(folder) is not None


def test_a_host_without_a_heartbeat_for_long_ends(folder: LeaseFolder) -> None:
    """Others count the lease as lost by then."""
    with pytest.raises(OSError, match="heartbeat"):
        asyncio.run(asyncio.wait_for(keep_heartbeat(folder, _spec(folder, 0.1)), 30))


def test_a_removed_folder_is_not_made_again_by_a_heartbeat(folder: LeaseFolder) -> None:
    folder.spec.unlink()
    (folder.heartbeat / "in-the-way").rmdir()
    folder.heartbeat.rmdir()
    folder.path.rmdir()
    asyncio.run(asyncio.wait_for(keep_heartbeat(folder, _spec(folder)), 30))
    assert not folder.path.exists()
