"""The process that looks at files: as this one would, also when it is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from tests.support.waiting import wait_until

from headrace.packing.sources import stat_program
from headrace.packing.sources.stat_process import Files, StatProcess


@pytest.fixture
def process() -> Iterator[StatProcess]:
    started = StatProcess()
    yield started
    started.close()


def started() -> tuple[StatProcess, psutil.Process]:
    """The process as its user and as the machine sees it; other tests may have left some."""
    before = psutil.Process().children()
    process = StatProcess()
    (other,) = (child for child in psutil.Process().children() if child not in before)
    return process, other


def files_of(folder: Path, *names: str) -> Files:
    """Files of a folder that has been closed again."""
    for name in names:
        (folder / name).write_bytes(b"x" * len(name))
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    return Files(f"{folder}/", [f"a/{entry.name}" for entry in found], found)


def test_it_sees_what_there_is(process: StatProcess, tmp_path: Path) -> None:
    files = files_of(tmp_path, "1", "zwölf", "with space\nand line", os.fsdecode(b"\xff"))
    assert process.ask(files)
    ((paths, sizes, times_ns),) = process.answers(wait=True)
    statuses = [(tmp_path / path.removeprefix("a/")).stat() for path in paths]
    assert list(paths) == list(files.paths)
    assert list(sizes) == [status.st_size for status in statuses]
    assert list(times_ns) == [status.st_mtime_ns for status in statuses]


def test_it_is_asked_no_more_than_fits(process: StatProcess, tmp_path: Path) -> None:
    files = files_of(tmp_path, *(f"{number:0200d}" for number in range(256)))
    assert [process.ask(files) for _ in range(3)] == [True, True, False]
    assert len(list(process.answers(wait=True))) == 2


def test_a_link_is_followed(process: StatProcess, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("long name")
    assert process.ask(files_of(tmp_path, "long name"))
    ((_, sizes, _),) = process.answers(wait=True)
    assert list(sizes) == [len("long name")] * 2


def test_a_file_that_is_gone_is_told_as_by_this_process(
    process: StatProcess, tmp_path: Path
) -> None:
    files = files_of(tmp_path, "1", "2")
    (tmp_path / "2").unlink()
    assert process.ask(files)
    with pytest.raises(FileNotFoundError, match="2"):
        list(process.answers(wait=True))


def test_one_that_is_killed_is_done_without(tmp_path: Path) -> None:
    """pains 18: what was asked of it is answered all the same."""
    files = files_of(tmp_path, "1", "22")
    process, other = started()
    with closing(process):
        other.suspend()
        assert process.ask(files)
        other.kill()
        ((paths, sizes, _),) = process.answers(wait=True)
        assert (list(paths), list(sizes)) == (["a/1", "a/22"], [1, 2])
        assert not process.ask(files)


def test_it_ends_with_its_user(tmp_path: Path) -> None:
    process, other = started()
    assert process.ask(files_of(tmp_path, "1"))
    process.close()
    assert not other.is_running()


def test_it_is_ended_whatever_it_does(tmp_path: Path) -> None:
    process, other = started()
    with closing(process):
        wait_until(lambda: process.is_ready, 60, "the process is ready")
        assert process.ask(files_of(tmp_path, "1"))
        other.suspend()
    assert not other.is_running()


def test_one_that_starts_slowly_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that listing a few thousand files never waits for the help that it does not need."""
    slow = tmp_path / "slow.py"
    slow.write_text("import signal; signal.pause()")
    monkeypatch.setattr(stat_program, "__file__", str(slow))
    process, other = started()
    with closing(process):
        assert not process.is_ready
    assert not other.is_running()
