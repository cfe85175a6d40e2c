"""What headrace makes for its owner alone, and what it finds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import UserError
from headrace.files.private import make_private, make_private_file

root_only = pytest.mark.skipif(os.getuid() != 0, reason="giving a file away takes root")


@pytest.fixture(autouse=True)
def _usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize(("make", "wanted"), [(make_private, 0o700), (make_private_file, 0o600)])
def test_new_ones_are_private_in_a_private_home(make, wanted, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    make(tmp_path / "home" / "leases" / "one")
    assert mode(tmp_path / "home") == 0o700
    assert mode(tmp_path / "home" / "leases" / "one") == wanted


@pytest.mark.parametrize(("make", "wanted"), [(make_private, 0o700), (make_private_file, 0o600)])
def test_wider_ones_are_tightened(make: Callable[[Path], None], wanted: int, tmp_path: Path):
    path = tmp_path / "one"
    path.mkdir() if make is make_private else path.touch()
    path.chmod(0o777)
    make(path)
    assert mode(path) == wanted


def test_what_a_file_holds_stays(tmp_path: Path):
    (tmp_path / "one").write_text("content")
    make_private_file(tmp_path / "one")
    assert (tmp_path / "one").read_text() == "content"


@root_only
def test_a_folder_of_another_account_is_refused(tmp_path: Path):
    (tmp_path / "one").mkdir()
    os.chown(tmp_path / "one", 4242, -1)
    with pytest.raises(UserError, match=r"is not a folder of this account \(uid 4242\)"):
        make_private(tmp_path / "one")


def test_a_link_in_place_of_a_folder_is_refused(tmp_path: Path):
    """Another account may have put it there, to have its own choice of folder used."""
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "one").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is not a folder of this account"):
        make_private(tmp_path / "one")
    assert mode(tmp_path / "elsewhere") == 0o755


def test_a_home_that_others_may_write_in_is_closed_to_them(headrace_home, tmp_path):
    """They would put sites there, which name code to be run."""
    headrace_home.chmod(0o777)
    make_private(headrace_home / "leases" / "one")
    assert mode(headrace_home) == 0o755


def test_a_home_that_all_may_write_in_by_intent_is_refused(headrace_home: Path) -> None:
    headrace_home.chmod(0o1777)
    with pytest.raises(UserError, match="Others may write in headrace's home") as told:
        make_private_file(headrace_home / "ledger.db")
    assert "HEADRACE_HOME" in told.value.hint


def test_a_device_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    with pytest.raises(UserError, match="is not a regular file"):
        make_private_file(pipe)
    assert pipe.stat().st_mode & 0o777 == 0o666
