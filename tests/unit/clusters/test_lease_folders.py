"""What a lease on disk is told to be."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_folders import leftovers, reap
from headrace.clusters.lease_records import (
    Ending,
    LeaseSpec,
)
from headrace.errors import SilentError
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role
from headrace.states import LeaseState

_DONE = Ending(state=LeaseState.CLOSED, reason="done")


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    """A site with a lost lease, `c`."""
    site = SiteFolder(tmp_path)
    _lease(site, "c", heartbeat="1.0 1.0")
    return site


def _lease(site: SiteFolder, lease_id: str, heartbeat: str) -> LeaseFolder:
    lease = site.lease(lease_id)
    known = {"key": "k", "run_id": "r", "role_name": "cpu", "role": Role(), "heartbeat_s": 0.1}
    spec = LeaseSpec.model_validate({"lease_id": lease_id, **known})
    write_record(lease.spec, spec)
    write_text(lease.heartbeat, heartbeat)
    return lease


def test_a_lease_that_nobody_can_read_keeps_no_other_from_being_ended(
    site: SiteFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """Another release has written it."""
    caplog.set_level(logging.WARNING)
    write_text(site.lease("b").spec, '{"lease_id": "b", "a field of tomorrow": 1}')
    assert [each.folder.lease_id for each in reap(site)] == ["c"]
    assert LeaseFiles.read(site.lease("c")).state(20) is LeaseState.LOST
    assert site.lease("c").closed.exists()
    assert "Lease b is passed over" in caplog.text
    assert leftovers(site) == ()


@pytest.mark.parametrize("name", ["host", "heartbeat", "closed", "cause"])
def test_a_damaged_file_of_a_lease_keeps_no_other_from_being_ended(
    site: SiteFolder, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    lease = _lease(site, "b", heartbeat="1.0 1.0")
    getattr(lease, name).write_bytes(b"\x80[")
    assert "c" in [each.folder.lease_id for each in reap(site)]
    assert site.lease("c").closed.exists()


def test_a_lease_whose_batch_system_is_silent_keeps_no_other_from_being_ended(
    site: SiteFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pains 22: it is ended another time."""
    _lease(site, "b", heartbeat="1.0 1.0")
    end = lease_client.end

    def silent_about_b(folder: LeaseFolder, *given: Any) -> None:
        if folder.lease_id == "b":
            raise SilentError("EC2 says 503: no")
        end(folder, *given)

    monkeypatch.setattr(lease_client, "end", silent_about_b)
    assert [each.folder.lease_id for each in reap(site)] == ["c"]
    assert "Lease b is looked at again later: EC2 says 503: no" in caplog.text
    monkeypatch.setattr(lease_client, "end", end)
    assert [each.folder.lease_id for each in reap(site)] == ["b"]


def test_what_has_ended_is_not_looked_at_again(
    site: SiteFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """A site's leases of years are there; each look at one takes a few files of a slow storage."""
    caplog.set_level(logging.WARNING)
    for lease_id in ("a", "b"):
        write_text(site.lease(lease_id).spec, "{}")
        write_record(site.lease(lease_id).closed, _DONE)
    assert [each.folder.lease_id for each in leftovers(site)] == ["c"]
    assert not caplog.text
