"""Sources and datasets in S3 are read, looked at and verified as those in folders are."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from headrace.errors import DataError, StorageFullError, StoreError, UnknownNameError
from headrace.files.atomic import write_record
from headrace.files.manifest_file import read_manifest
from headrace.objects import s3_errors
from headrace.objects.protocol import Store
from headrace.objects.store import open_store
from headrace.packing.samples import Access
from headrace.packing.sources.open import open_source, with_format
from headrace.recipe.dataset import DatasetSpec
from headrace.shards import shard_locations as copies
from headrace.shards.inspection import summarise, verify_dataset
from headrace.states import StepState
from headrace.status.dataset import dataset_page
from support.command_line import Ended, headrace
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.s3_faults import Refuse, faulty
from support.s3_servers import S3Server, new_bucket
from support.shards import write_dataset

NUM = 40


def write_files(folder: Path) -> None:
    for number in range(NUM):
        path = folder / ("cat", "dog")[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * (1 + 997 * number))


def write_index(folder: Path) -> None:
    write_files(folder)
    rows = "".join(f"{('cat', 'dog')[n % 2]}/{n:02d}.png,{n % 3},why {n}\n" for n in range(NUM))
    (folder / "index.csv").write_text(f"path,label,question\n{rows}")


def write_tars(folder: Path) -> None:
    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in range(NUM):
                for ending, content in {
                    "jpg": bytes([number]) * 5000,
                    "cls": b"%d" % number,
                }.items():
                    info = tarfile.TarInfo(f"{number:03d}.{ending}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))


def write_parquet(folder: Path) -> None:
    folder.mkdir()
    table = pa.table({"n": range(NUM), "text": [f"text {n}" for n in range(NUM)]})
    parquet.write_table(table, folder / "a.parquet", row_group_size=7)


def write_arrow(folder: Path) -> None:
    """As `save_to_disk` of Hugging Face `datasets`."""
    folder.mkdir()
    table = pa.table({"n": range(NUM), "text": [f"text {n}" for n in range(NUM)]})
    with pa.ipc.new_stream(folder / "data.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    state = {"_data_files": [{"filename": "data.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state))


def write_hdf5(folder: Path) -> None:
    folder.mkdir()
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(NUM), chunks=(8,), compression="gzip")


FORMS = {
    "files": (write_files, {}),
    "index": (write_index, {"index": "index.csv"}),
    "webdataset": (write_tars, {}),
    "tar": (write_tars, {"format": "tar", "include": ["**/*.jpg"], "labels": "none"}),
    "parquet": (write_parquet, {}),
    "hdf5": (write_hdf5, {}),
    "huggingface": (write_arrow, {}),
}


@pytest.fixture(params=["moto_server", "rclone_server"])
def server(request: pytest.FixtureRequest, s3_credentials: None) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("form", list(FORMS))
def test_the_same_as_from_a_folder(tmp_path: Path, server: S3Server, form: str) -> None:
    write, more = FORMS[form]
    local, url = tmp_path / "local", f"{new_bucket(server)}/in/here"
    write(local)
    store = open_store(url, server.options)
    for path in local.rglob("*.*"):
        store.upload(path, str(path.relative_to(local)))
    access = Access(s3=server.options)
    here = DatasetSpec.model_validate({"name": "x", "source": str(local), **more})
    there = here.model_copy(update={"source": url})
    assert with_format(there, access).format == with_format(here).format
    near, far = open_source(here), open_source(there, access)
    expected, found = near.list_samples(), far.list_samples()
    assert [(r.path, r.label, r.num_bytes, r.where) for r in found] == [
        (r.path, r.label, r.num_bytes, r.where) for r in expected
    ]
    assert far.fields == near.fields
    worker = open_source(with_format(there, access), access, far.fields)
    assert list(worker.read(found[::-1])) == list(near.read(expected[::-1]))


@pytest.mark.parametrize("form", list(FORMS))
def test_objects_that_change_while_packing(tmp_path, moto_bucket, moto_server, form):
    write, more = FORMS[form]
    local = tmp_path / "local"
    write(local)
    store = open_store(moto_bucket, moto_server.options)
    paths = [str(path.relative_to(local)) for path in local.rglob("*.*")]
    for path in paths:
        store.upload(local / path, path)
    spec = DatasetSpec.model_validate({"name": "x", "source": moto_bucket, **more})
    source = open_source(spec, Access(s3=moto_server.options))
    refs = source.list_samples()
    name = next(path for path in sorted(paths) if refs[0].path.startswith(path))
    store.write(name, (local / name).read_bytes() + b"more")
    with pytest.raises(DataError, match=f"{name} was written to since"):
        list(source.read(refs))
    store.delete(name)
    with pytest.raises(DataError, match=f"{name} is gone since"):
        list(source.read(refs))


SHARD = "shards/train-00001.h5"


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
