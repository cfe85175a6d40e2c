"""Files are whole or not there: checksums, digests of manifests, locks."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash

from headrace.errors import ManifestError, StepCancelledError, StepError, StorageError
from headrace.files import checksums
from headrace.files.atomic import (
    is_there,
    names_in,
    publish_folder,
    read_record,
    read_text,
    write_bytes,
    write_if_possible,
    write_marker,
    write_record,
    write_text,
)
from headrace.files.locks import exclusive_while
from headrace.files.manifest_file import parse_manifest, sealed, unsealed
from headrace.objects.store import LocalStore
from headrace.steps.mailbox import DriverExit
from support.late_files import late_files
from support.small_disk import fill, read_only, small_disk
from support.staged_datasets import make_dataset
from support.waiting import wait_until


def test_replace_and_no_leftovers(tmp_path):
    path = tmp_path / "deep" / "file"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("look", [is_there, read_text, lambda at: at.name in names_in(at.parent)])
def test_a_file_that_another_machine_makes_is_seen_within_a_second(tmp_path, look):
    """A client of NFS keeps for up to a minute what was not there."""
    asked, answer = tmp_path / "close", tmp_path / "cancel"
    with late_files(tmp_path) as late:
        assert not look(asked)
        assert not is_there(answer)
        with late.written_elsewhere():
            write_text(asked, "the host")
            write_text(answer, "a user")
        wait_until(lambda: look(asked) and is_there(answer), 10, "what was written elsewhere")


def test_a_file_that_is_asked_for_all_the_time_costs_one_look_a_second(tmp_path, monkeypatch):
    """Each look is a request to the file server, and on EFS and S3 Files it is paid."""
    now_s = 12345.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with late_files(tmp_path) as late:
        for _ in range(20):
            assert not is_there(tmp_path / "close")
            assert read_text(tmp_path / "cancel") is None
        assert late.num_looks == 1
        now_s += 1
        assert not is_there(tmp_path / "close")
        assert late.num_looks == 2


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Sets the umask, until the test ends."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_dataset_is_shared_whole_and_what_belongs_to_a_run_is_not(tmp_path, umask, mask, mode):
    """Whoever may read the shards of a colleague may read their manifest."""
    umask(mask)
    manifest = make_dataset(tmp_path / "dataset")
    shard = tmp_path / "dataset" / manifest.shards[0].file
    store = LocalStore(str(tmp_path / "store"))
    store.upload(shard, "uploaded")
    store.write("written", b"")
    files = (shard, tmp_path / "dataset/manifest.json", *(tmp_path / "store").iterdir())
    assert [file.stat().st_mode & 0o777 for file in files] == [mode] * 4
    write_text(tmp_path / "site.json", "may hold secrets")
    assert (tmp_path / "site.json").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def stale(monkeypatch) -> list[OSError]:
    """Errors that the next reads meet, as those of a file on NFS that was replaced just now."""
    errors: list[OSError] = []
    opened = Path.open

    def open_path(path: Path, mode: str) -> Any:
        if errors:
            raise errors.pop()
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", open_path)
    return errors


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path, stale):
    path = tmp_path / "status.json"
    write_text(path, "new")
    stale += [OSError(errno.ESTALE, "Stale file handle")] * 2
    assert read_text(path) == "new"
    assert not stale
    path.unlink()
    assert read_text(path) is None


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_file_that_cannot_be_read_is_told(tmp_path, stale, number):
    stale += [OSError(number, os.strerror(number))] * 100
    with pytest.raises(OSError, match=os.strerror(number)):
        read_text(tmp_path / "status.json")
    assert len(stale) >= 90


def test_on_a_full_disk_requests_get_through_and_records_stay_as_they_were(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        record, path = DriverExit(code=0, at=1.0), disk / "status.json"
        write_record(path, record)
        filler = fill(disk)
        with pytest.raises(OSError, match=f"No space left on device: '{disk}/closed'"):
            write_text(disk / "closed", "a reason")
        write_if_possible(path, record.model_copy(update={"code": 1}))
        assert read_record(path, DriverExit) == record
        write_marker(disk / "cancel", "a reason")
        assert (disk / "cancel").read_text() == ""
        filler.unlink()
        write_marker(disk / "close", "a reason")
        assert (disk / "close").read_text() == "a reason"
        assert sorted(entry.name for entry in disk.iterdir()) == ["cancel", "close", path.name]


def test_what_informs_is_left_out_where_its_folder_cannot_be_written(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    record = DriverExit(code=0, at=1.0)
    assert write_if_possible(tmp_path / "status.json", record)
    with read_only(tmp_path):
        assert not write_if_possible(tmp_path / "status.json", record)
        assert f"Read-only file system: '{tmp_path}/status.json'" in caplog.text
        with pytest.raises(OSError, match=f"Read-only file system: '{tmp_path}/cancel'"):
            write_marker(tmp_path / "cancel", "a reason")
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_a_folder_is_published_once(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text(name)
    assert publish_folder(tmp_path / "a", tmp_path / "final")
    assert not publish_folder(tmp_path / "b", tmp_path / "final")
    assert (tmp_path / "final" / "content").read_text() == "a"


@pytest.mark.parametrize("num_bytes", [0, 1, checksums.CHUNK_BYTES, checksums.CHUNK_BYTES + 7])
def test_copy_gives_same_bytes_and_checksum(tmp_path: Path, num_bytes: int) -> None:
    content = os.urandom(num_bytes)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    target.write_bytes(b"old content that is longer" * 10)
    copied = checksums.copy_verified(source, target)
    assert copied == (num_bytes, xxhash.xxh3_128(content).hexdigest())
    assert target.read_bytes() == content
    assert checksums.file_xxh3_128(source) == copied[1]


def test_tick_counts_every_byte(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(checksums.CHUNK_BYTES + 3))
    ticks: list[int] = []
    checksums.file_xxh3_128(source, ticks.append)
    assert ticks == [checksums.CHUNK_BYTES, 3]


def test_failed_copy_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * 100)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checksums.copy_verified(source, target)
    assert not target.exists()


def test_progress_of_a_copy_can_stop_it(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(3 * checksums.CHUNK_BYTES))
    ticks: list[int] = []

    def stop(num_bytes: int) -> None:
        ticks.append(num_bytes)
        if len(ticks) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checksums.copy_verified(source, target, stop)
    assert ticks == [checksums.CHUNK_BYTES] * 2
    assert not target.exists()


def test_a_file_that_becomes_shorter_is_copied_as_far_as_it_goes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    content = os.urandom(4 * checksums.CHUNK_BYTES)
    source.write_bytes(content)
    left = content[: checksums.CHUNK_BYTES + 4096]
    copied = checksums.copy_verified(source, target, lambda _: os.truncate(source, len(left)))
    assert copied == (len(left), xxhash.xxh3_128_hexdigest(left))
    assert target.read_bytes() == left


CONTENT = {
    "format_version": 2, "name": "é", "mean": 0.30000000000000004, "tiny": 1e-05,
    "inner": {"digest": "0" * 32},
}  # fmt: skip
TEXT = sealed(json.dumps(CONTENT, indent=1, ensure_ascii=False))


def test_the_digest_is_one_more_key_and_the_same_each_time() -> None:
    assert list(json.loads(TEXT)) == [*CONTENT, "digest"]
    assert unsealed(TEXT, "m") == CONTENT
    assert sealed(json.dumps(CONTENT, indent=1, ensure_ascii=False)) == TEXT


def test_every_flipped_bit_breaks_the_seal() -> None:
    """Also one that leaves the JSON value as it was: the exponent's letter, the 17th digit."""
    for bit in range(8 * len(TEXT)):
        flipped = bytearray(TEXT)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ManifestError):
            unsealed(bytes(flipped), "m")


@pytest.mark.parametrize("more", [b" ", b"\n", b"{}"])
def test_nothing_may_follow(more: bytes) -> None:
    with pytest.raises(ManifestError):
        unsealed(TEXT + more, "m")


def test_only_the_first_version_has_no_digest() -> None:
    assert unsealed(b'{"format_version": 1}', "m") == {"format_version": 1}
    with pytest.raises(ManifestError, match="it has no 'digest'"):
        unsealed(b'{"format_version": 2}', "m")


def test_what_is_no_manifest_is_told_in_plain_words() -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(b'{"format_version": 1, "name": 3, "shards": null}', "m")
    for words in (
        "m is damaged, or was changed by hand: its content: ",
        "name: give text (got 3)", "the key 'splits' is",
        "shards: give a list, each a mapping with keys of", "(got null)",
    ):  # fmt: skip
        assert words in caught.value.what
    assert "validation error" not in caught.value.what


@pytest.mark.parametrize("text", [b"", b"[]", b"1", b"[" * 100_000, b"\xff\xfe", b'{"a": NaN'])
def test_what_is_no_object_is_named(text: bytes) -> None:
    with pytest.raises(ManifestError, match="m is damaged"):
        unsealed(text, "m")


HOLD = """
import sys, time
from pathlib import Path
from headrace.files.locks import exclusive_while
with exclusive_while(Path(sys.argv[1]), lambda: None):
    print("held", flush=True)
    time.sleep(60)
"""


def test_wait_ends_when_the_holder_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        checks: list[int] = []

        def kill_then_go_on() -> None:
            checks.append(1)
            holder.kill()

        with exclusive_while(lock, kill_then_go_on) as waited:
            assert waited
            assert checks


def test_wait_can_be_given_up(tmp_path: Path) -> None:
    lock = tmp_path / "lock"

    def cancel() -> None:
        raise StepCancelledError("enough")

    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(StepCancelledError), exclusive_while(lock, cancel):
            pytest.fail("entered")
        holder.kill()
    with exclusive_while(lock, cancel) as waited:
        assert not waited


def test_a_place_that_cannot_hold_a_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StorageError, match=f"^File exists: '{tmp_path}/file'"),
        exclusive_while(tmp_path / "file" / "lock", lambda: None),
    ):
        pytest.fail("entered")


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch) -> None:
    def no_flock(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_flock)
    with (
        pytest.raises(StepError, match="cannot be locked") as caught,
        exclusive_while(tmp_path / "lock", lambda: None),
    ):
        pytest.fail("entered")
    assert "a file system with locks" in caught.value.hint
