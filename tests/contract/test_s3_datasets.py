"""Datasets in S3 are looked at and verified as those in folders are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from headrace.errors import StorageFullError, StoreError, UnknownNameError
from headrace.files.atomic import write_record
from headrace.files.manifest_file import read_manifest
from headrace.objects import s3_errors
from headrace.objects.protocol import Store
from headrace.objects.store import open_store
from headrace.shards import shard_locations as copies
from headrace.shards.inspection import summarise, verify_dataset
from headrace.states import StepState
from headrace.status.dataset import dataset_page
from support.command_line import Ended, headrace
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.s3_faults import Refuse, faulty
from support.s3_servers import S3Server, new_bucket
from support.shards import write_dataset

SHARD = "shards/train-00001.h5"


@pytest.fixture(params=["moto_server", "rclone_server"])
def server(request: pytest.FixtureRequest, s3_credentials: None) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of several shards."""
    values = np.arange(200, dtype=np.float32).reshape(40, 5)
    fields = {"x": values, "label": np.arange(40) % 2}
    splits = {"train": 24, "test": 16}
    write_dataset(tmp_path / "source", fields, splits=splits, shard_samples=8)
    return tmp_path / "source"


@pytest.fixture
def store(server: S3Server, folder: Path) -> Store:
    """The same in S3."""
    store = open_store(f"{new_bucket(server)}/packed/tiny", server.options)
    for path in folder.rglob("*.*"):
        store.upload(path, str(path.relative_to(folder)))
    return store


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


Command = Callable[..., Ended]


@pytest.fixture
def command(server: S3Server, tmp_path: Path) -> Command:
    """`headrace COMMAND URL` with a site that names the server."""
    site = tmp_path / "site.yaml"
    content = {"name": "x", "folder": str(tmp_path), "roles": {"cpu": {}}}
    content |= {"tiers": [{"name": "t", "folder": str(tmp_path)}]}
    content |= {"s3": {"endpoint_url": server.endpoint_url}}
    site.write_text(yaml.safe_dump(content))
    return lambda *words: headrace(*words, "--site", str(site), columns=80)


def test_an_intact_dataset(store, server, folder, scratch, command):
    """Every byte is read, and never more than one shard lies here."""
    held: list[int] = []
    read: list[int] = []

    def tick(num_bytes: int) -> None:
        read.append(num_bytes)
        held.append(len(list(scratch.rglob("*.h5"))))

    manifest = read_manifest(folder)
    assert len(manifest.shards) > 2
    assert verify_dataset(store.url, tick, server.options) == ()
    assert sum(read) == manifest.num_bytes
    assert set(held) == {1}
    assert list(scratch.iterdir()) == []
    assert "intact" in command("verify", store.url).stdout
    here, there = summarise(folder), summarise(store.url, server.options)
    assert there == here.model_copy(update={"path": store.url})
    shown = json.loads(command("inspect", f"{store.url}/manifest.json", "--json").stdout)
    assert shown["num_samples"] == manifest.num_samples


def test_its_page_is_read_with_the_site_of_the_run_that_packed_it(
    store: Store, server: S3Server, folder: Path, headrace_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    manifest, run = read_manifest(folder), make_run()
    write_record(run.folder.site, run.site.model_copy(update={"s3": server.options}))
    given = {"dataset": store.url, "fingerprint": manifest.fingerprint, "reused": False}
    row = {"state": StepState.SUCCEEDED, "outputs": given}
    attempt_row_of(run, "pack", lease_on_disk(run), **row)
    page = dataset_page("tiny")
    assert (page.damage, page.is_remote, page.num_missing) == ("", True, 0)
    assert [split.num_samples for split in page.splits] == [24, 16]
    store.delete(SHARD)
    assert dataset_page("tiny").missing == (SHARD,)
    store.delete("manifest.json")
    assert "is not a dataset" in dataset_page("tiny").damage


def test_a_damaged_shard_is_named_with_its_samples(store, server, folder, command):
    """Also one that was cut, and one that is gone."""
    content = bytearray(store.read(SHARD))
    content[len(content) // 2] ^= 1
    store.write(SHARD, bytes(content))
    (shard,) = (one for one in read_manifest(folder).shards if one.file == SHARD)
    (finding,) = verify_dataset(store.url, None, server.options)
    assert (finding.file, finding.first_sample) == (SHARD, shard.num_samples)
    assert finding.last_sample == 2 * shard.num_samples - 1
    assert "checksum" in finding.problem
    done = command("verify", store.url)
    assert done.exit_code == 1
    assert SHARD in done.stdout
    store.write(SHARD, bytes(content[:-1]))
    (finding,) = verify_dataset(store.url, None, server.options)
    assert "bytes, not" in finding.problem
    store.delete(SHARD)
    (finding,) = verify_dataset(store.url, None, server.options)
    assert finding.problem == "the file is missing"
    assert summarise(store.url, server.options).missing == (SHARD,)


def test_a_single_shard(store: Store, server: S3Server, folder: Path, scratch: Path) -> None:
    here, there = summarise(folder / SHARD), summarise(f"{store.url}/{SHARD}", server.options)
    assert there == here.model_copy(update={"path": f"{store.url}/{SHARD}"})
    assert list(scratch.iterdir()) == []
    with pytest.raises(UnknownNameError, match=r"none\.h5 does not exist"):
        summarise(f"{store.url}/none.h5", server.options)


def test_trouble_on_the_way_is_no_finding(store, server, scratch, monkeypatch):
    """A server that fails and a full disk say nothing about the dataset."""
    monkeypatch.setattr(s3_errors, "FIRST_PAUSE_S", 0.001)
    with faulty(server.endpoint_url) as faults:
        options = server.options.model_copy(
            update={"endpoint_url": faults.endpoint_url, "max_attempts": 2}
        )
        faults.concerns = lambda method, path: method == "GET" and path.endswith(SHARD)
        faults.always = Refuse(503, "SlowDown")
        with pytest.raises(StoreError, match=f"{SHARD}.*2 times.*SlowDown"):
            verify_dataset(store.url, None, options)
    monkeypatch.setattr(copies, "free_bytes", lambda _: 10)
    with pytest.raises(StorageFullError, match="TMPDIR"):
        verify_dataset(store.url, None, server.options)
    assert list(scratch.iterdir()) == []
