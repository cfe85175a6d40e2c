"""What every store promises, held to a folder, to memory and to S3 servers of three makes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import random
import uuid
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import xxhash

from headrace.errors import DataError, StoreChangedError, StoreMissingError
from headrace.objects import s3_quick
from headrace.objects.protocol import ByteRange, Store, StoredFile
from headrace.objects.store import open_store
from support.s3_servers import client
from support.store_processes import read_by_threads_and_forks

LARGE_BYTES = 40 * 2**20 + 12_345
"""More than one part of an upload and several pieces of a download."""

NAMES = ("a.txt", "b/c.txt", "b/d e+f&g=ü#?%41.txt", "b/c/deep.bin", "e.txt?versionId=1")


@pytest.fixture(params=["folder", "memory", "moto", "rclone", "rclone without obstore", "swift"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store."""
    if request.param == "folder":
        return open_store(str(tmp_path / "store"))
    if request.param == "memory":
        return open_store(f"memory://{uuid.uuid4().hex}/some/prefix")
    server, *without = request.param.split()
    if without:  # as on POWER
        monkeypatch.setattr(s3_quick, "obstore", None)
    bucket = request.getfixturevalue(f"{server}_bucket")
    server = request.getfixturevalue(f"{server}_server")
    return open_store(f"{bucket}/some/prefix", server.options)


def read_files(store: Store, *names: str) -> list[object]:
    """Files as they are now, whatever their versions."""
    return list(store.read_files([StoredFile(name, 10, "") for name in names]))


def test_an_empty_store_lists_nothing(store: Store) -> None:
    assert list(store.list_files()) == []
    assert store.stat("a.txt") is None


def test_what_was_written_is_listed_read_and_deleted(store: Store) -> None:
    for name in NAMES:
        store.write(name, name.encode() * 3)
    store.write("empty", b"")
    listed = {file.path: file for file in store.list_files()}
    assert sorted(listed) == sorted([*NAMES, "empty"])
    for name in NAMES:
        assert listed[name] == store.stat(name)
        assert listed[name].num_bytes == 3 * len(name.encode())
        assert store.read(name) == name.encode() * 3
    assert store.read("empty") == b""
    for name in [*NAMES, "empty"]:
        store.delete(name)
        store.delete(name)
    assert list(store.list_files()) == []
    if Path(store.url).is_absolute():
        assert list(Path(store.url).iterdir()) == []  # no empty folders, as of old checkpoints


def test_a_range_ends_with_the_file(store: Store) -> None:
    store.write("a", b"0123456789")
    assert store.read("a", 3) == b"3456789"
    assert store.read("a", 0, 4) == b"0123"
    assert store.read("a", 8, 50) == b"89"
    assert store.read("a", 10, 50) == b""
    assert store.read("a", 50) == b""
    assert store.read("a", 4, 4) == b""


def test_many_are_read_in_order_and_the_missing_one_is_named(store: Store) -> None:
    names = [f"x/{index}" for index in range(40)]
    for name in names:
        store.write(name, name.encode())
    found = read_files(store, *names, "x/none")
    assert found[:-1] == [name.encode() for name in names]
    assert isinstance(found[-1], StoreMissingError)
    assert "x/none" in str(found[-1])
    assert read_files(store) == []


def test_a_file_that_was_replaced_since_it_was_listed_is_told(store: Store) -> None:
    store.write("a", b"old")
    store.write("b", b"same")
    listed = sorted(store.list_files())
    store.write("a", b"new!")
    changed, same = store.read_files(listed)
    assert isinstance(changed, StoreChangedError)
    assert same == b"same"
    old = listed[0]
    for read in (
        lambda: list(store.read_ranges([ByteRange("a", old.version, 0, 1)])),
        lambda: store.open("a", old.version),
    ):
        with pytest.raises(StoreChangedError, match="a was written to"):
            read()
        store.delete("a")
        with pytest.raises(StoreMissingError, match="a is gone"):
            read()
        store.write("a", b"newer")


def test_parts_of_files_come_in_order(store: Store) -> None:
    contents = {"a": bytes(range(256)) * 400, "b": b"0123456789"}
    for name, content in contents.items():
        store.write(name, content)
    spans = [("a", 5, 10), ("a", 20, 300), ("b", 2, 3), ("a", 100_000, 2_400), ("a", 0, 0)]
    ranges = [ByteRange(name, version_of(store, name), *span) for name, *span in spans]
    assert list(store.read_ranges(ranges)) == [
        contents[name][start : start + size] for name, start, size in spans
    ]
    cut = ByteRange("b", version_of(store, "b"), 5, 20)
    with pytest.raises(StoreChangedError, match="b was written to"):
        list(store.read_ranges([cut]))
    with store.open("a", version_of(store, "a")) as file:
        assert file.seek(-3, os.SEEK_END) == len(contents["a"]) - 3
        assert file.read() == contents["a"][-3:]
        file.seek(50)
        assert (file.read(7), file.tell()) == (contents["a"][50:57], 57)


def test_only_what_is_wanted_is_listed(store: Store) -> None:
    for name in ("a.png", "b/c.png", "b/d.txt"):
        store.write(name, b"x")
    wanted = store.list_files(wanted=lambda path: path.endswith(".png"))
    assert sorted(file.path for file in wanted) == ["a.png", "b/c.png"]
    assert sorted(store.list_names()) == ["a.png", "b/c.png", "b/d.txt"]


def test_a_missing_file_is_told(store: Store, tmp_path: Path) -> None:
    store.write("there/file", b"x")
    for path in ("none", "there", "there/none"):
        with pytest.raises(StoreMissingError, match=path):
            store.read(path)
        with pytest.raises(StoreMissingError, match=path):
            store.download(path, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_large_file_comes_back_the_same(store: Store, tmp_path: Path) -> None:
    content = random.Random(1).randbytes(LARGE_BYTES)
    source, target = tmp_path / "large", tmp_path / "back"
    source.write_bytes(content)
    sent: list[int] = []
    got: list[int] = []
    store.upload(source, "deep/large.h5", sent.append)
    assert store.download("deep/large.h5", target, got.append) == xxhash.xxh3_128_hexdigest(content)
    assert target.read_bytes() == content
    assert sum(sent) == sum(got) == LARGE_BYTES
    assert store.read("deep/large.h5", LARGE_BYTES - 100) == content[-100:]
    assert [file.num_bytes for file in store.list_files()] == [LARGE_BYTES]


@pytest.mark.parametrize("num_bytes", [0, 1, 5_000])
def test_a_small_file_is_copied_both_ways(store: Store, tmp_path: Path, num_bytes: int) -> None:
    content = bytes(range(256)) * 20
    (tmp_path / "small").write_bytes(content[:num_bytes])
    store.upload(tmp_path / "small", "small")
    found = store.download("small", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content[:num_bytes]
    assert found == xxhash.xxh3_128_hexdigest(content[:num_bytes])


def test_a_transfer_can_be_stopped(store: Store, tmp_path: Path) -> None:
    """What was being written is taken back."""

    def stop(num_bytes: int) -> None:
        raise KeyboardInterrupt

    source = tmp_path / "large"
    source.write_bytes(bytes(LARGE_BYTES))
    store.upload(source, "large")
    with pytest.raises(KeyboardInterrupt):
        store.download("large", tmp_path / "back", stop)
    assert not (tmp_path / "back").exists()


def test_the_listing_can_be_stopped(store: Store) -> None:
    store.write("a", b"a")

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(store.list_files(stop))


def test_hidden_names_are_not_listed(store: Store) -> None:
    for name in (".hidden", "a/.b/c", "a/c"):
        store.write(name, b"x")
    assert [file.path for file in store.list_files()] == ["a/c"]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../other", "a/../../b", "a\0b"])
def test_a_path_out_of_the_store_is_refused(store: Store, path: str) -> None:
    for action in (store.read, store.stat, store.delete):
        with pytest.raises(DataError, match="not a path inside"):
            action(path)


def test_threads_and_processes_may_share_a_store(store: Store) -> None:
    """A forked process must not talk over its parent's connections.

    A new process forks: threads that other tests left in this one may hold a lock of OpenSSL.
    """
    numbers = [str(index).encode() for index in range(8)]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        assert process.submit(read_by_threads_and_forks, store, numbers).result() == 3 * numbers
    assert pickle.loads(pickle.dumps(store)).url == store.url


def version_of(store: Store, path: str) -> str:
    """The version of a file that is there."""
    found = store.stat(path)
    assert isinstance(found, StoredFile)
    return found.version


def test_no_version_is_empty(store: Store) -> None:
    store.write("a", os.urandom(10))
    assert version_of(store, "a")


@pytest.mark.parametrize("kind", ["moto", "swift"])
def test_a_bucket_that_keeps_versions_shows_the_newest(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bucket, server = (request.getfixturevalue(f"{kind}_{each}") for each in ("bucket", "server"))
    versioning = {"Status": "Enabled"}
    name = bucket.removeprefix("s3://")
    client(server).put_bucket_versioning(Bucket=name, VersioningConfiguration=versioning)
    store = open_store(f"{bucket}/data", server.options)
    for content in (b"old", b"newer"):
        store.write("a", content)
    old = StoredFile("a", 3, hashlib.md5(b"old").hexdigest())
    assert store.read("a") == b"newer"
    assert isinstance(next(store.read_files([old])), StoreChangedError)
    assert [file.num_bytes for file in store.list_files()] == [5]
    store.delete("a")
    assert store.stat("a") is None
    assert list(store.list_files()) == []
    assert len(client(server).list_object_versions(Bucket=name)["Versions"]) == 2
    store.write("a", b"again")
    assert store.read("a") == b"again"
