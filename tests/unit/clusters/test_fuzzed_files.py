"""Whatever lies in the files of a lease or a step, readers give an answer or a named error."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles, last_heartbeat
from headrace.clusters.lease_records import BadNodes, LeaseSpec
from headrace.errors import HeadraceError
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from headrace.steps import mailbox

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_KEYS = st.sampled_from(["state", "reason", "process", "code", "at", "key", "failure", "is_ended"])
_CONTENT = (
    st.binary(max_size=64)
    | _JSON.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(_KEYS, _JSON).map(lambda value: json.dumps(value).encode())
    | st.integers(1, 5000).map(lambda depth: b"[" * depth)
)
_FILES = ("host", "info", "heartbeat", "close", "closed", "cause", "bad_nodes", "pool", "waiting")


def lease_in(folder: str) -> LeaseFolder:
    lease = LeaseFolder(Path(folder) / "leases" / "demo-1")
    write_record(
        lease.spec,
        LeaseSpec(lease_id="demo-1", key="k", run_id="r", role_name="cpu", role=Role()),
    )
    return lease


def only_named_errors(call: Callable[[], Any]) -> None:
    with suppress(HeadraceError):
        call()


@pytest.mark.parametrize("name", [*_FILES, "spec"])
@settings(max_examples=25, deadline=None)
@given(content=_CONTENT)
def test_readers_of_a_lease(name: str, content: bytes):
    with TemporaryDirectory() as folder:
        lease = lease_in(folder)
        getattr(lease, name).write_bytes(content)
        for call in (
            lambda lease: LeaseFiles.read(lease).why_ended,
            lambda lease: LeaseFiles.read(lease).wait(),
            lambda lease: LeaseFiles.read(lease).get(BadNodes),
            lease_client.info,
            last_heartbeat,
        ):
            only_named_errors(lambda call=call: call(lease))
        only_named_errors(lambda: LeaseFiles.read(lease).state(20.0))


@pytest.mark.parametrize("name", ["spec", "status", "result", "exit", "cancel"])
@settings(max_examples=25, deadline=None)
@given(content=_CONTENT)
def test_readers_of_a_step(name: str, content: bytes):
    with TemporaryDirectory() as folder:
        lease = lease_in(folder)
        step = lease.step(1)
        step.path.mkdir(parents=True)
        getattr(step, name).write_bytes(content)
        only_named_errors(lambda: mailbox.status(step))
        only_named_errors(lambda: mailbox.outcome(step))
        only_named_errors(lambda: mailbox.lost(step, "gone"))
        only_named_errors(lambda: mailbox.find(lease, "k"))
        only_named_errors(lambda: mailbox.was_killed(step))
