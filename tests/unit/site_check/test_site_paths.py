"""The folder, the tiers and the Python of a site, as this machine sees them."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.batch.findings import Finding
from headrace.recipe.load import parse
from headrace.recipe.site import Role, Site, Tier
from headrace.site_check import file_systems, site_paths
from support.mounts import tell_mounts

GIB = 2**30


@pytest.fixture(autouse=True)
def _on_a_disk_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(site_paths, "file_system_of", lambda _: "ext4")


def site(folder: Path, backend: str = "local", tier: str = "") -> Site:
    role = {"backend": backend, **({} if backend == "local" else {"kind": "gang"})}
    content = {
        "name": "here",
        "folder": str(folder),
        "roles": {"cpu": role},
        "tiers": [{"name": "disk", "folder": tier or str(folder / "{user}" / "cache")}],
    }
    return parse(Site, content, "test")


def told(findings: Iterable[Finding]) -> dict[str, str]:
    return {each.subject: each.grade.value for each in findings}


def of_disk(free_bytes: int) -> Any:
    return lambda _: SimpleNamespace(free=free_bytes)


@pytest.mark.parametrize(
    ("free_bytes", "grade"),
    [(5 * GIB, "ok"), (5 * GIB - 1, "warn"), (GIB // 4, "warn"), (GIB // 4 - 1, "fail")],
)
def test_room(free_bytes: int, grade: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(site_paths.shutil, "disk_usage", of_disk(free_bytes))
    found = told(site_paths.shared_folder(site(tmp_path / "new"), is_proved=False))
    assert found == {**dict.fromkeys(("locks", "files", "folder", "mode"), "ok"), "room": grade}
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("backend", "is_proved", "grade"),
    [("slurm", False, "warn"), ("slurm", True, "ok"), ("local", False, "ok")],
)
def test_a_disk_of_one_machine_is_doubtful_where_there_are_others(
    backend: str, is_proved: bool, grade: str, tmp_path: Path
):
    found = told(site_paths.shared_folder(site(tmp_path, backend), is_proved=is_proved))
    assert found["folder"] == grade


def test_a_folder_that_everybody_may_write_in(tmp_path: Path):
    tmp_path.chmod(0o777)
    assert told(site_paths.shared_folder(site(tmp_path), is_proved=False))["mode"] == "warn"


@pytest.mark.parametrize(("kind", "call"), [("flock", "flock"), ("fcntl", "lockf")])
def test_locks_that_are_refused(
    kind: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """pains 25: as on a mount without locks."""

    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, call, refuse)
    first = next(iter(site_paths.shared_folder(site(tmp_path), is_proved=False)))
    assert (first.subject, first.grade.value) == ("locks", "fail")
    assert first.seen == f"{kind} in {tmp_path}: Function not implemented"


def test_locks_that_do_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    first = next(iter(site_paths.shared_folder(site(tmp_path), is_proved=False)))
    assert first.grade.value == "fail"
    assert first.seen.endswith("is granted twice")


def _replaces_folders(patch: pytest.MonkeyPatch) -> None:
    def rename(prepared: Path, final: Path) -> None:
        shutil.rmtree(final, ignore_errors=True)
        os.rename(prepared, final)

    patch.setattr(Path, "rename", rename)


def _rewrites_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Path, "replace", shutil.copyfile)


def _keeps_no_modes(patch: pytest.MonkeyPatch) -> None:
    opened = os.open
    patch.setattr(os, "open", lambda path, flags, _=0, **more: opened(path, flags, 0o644, **more))


def _cannot_rename(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    patch.setattr(Path, "replace", refuse)


@pytest.mark.parametrize(
    ("lack", "seen"),
    [
        (_replaces_folders, "steps overwrite each other"),
        (_rewrites_in_place, "changes for processes that are reading it"),
        (_keeps_no_modes, "a file made with mode 600 has 644"),
        (_cannot_rename, "Function not implemented"),
    ],
)
def test_a_bucket_that_is_mounted_by_fuse_is_no_folder(
    lack: Callable[[pytest.MonkeyPatch], None],
    seen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """As `rclone mount` showed them, and Mountpoint tells of itself (decision 0044)."""
    lack(monkeypatch)
    findings = site_paths.shared_folder(site(tmp_path / "new"), is_proved=False)
    (found,) = [each for each in findings if each.subject == "files"]
    assert (found.grade.value, seen in found.seen) == ("fail", True), found
    assert "S3 Files for a bucket" in found.advice
    monkeypatch.undo()
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("backend", "tier", "grade", "seen"),
    [
        ("local", "/elsewhere/cache", "warn", "the same for all users"),
        ("local", "", "ok", "usable"),
        ("slurm", "", "ok", "the pre-flight of the nodes checks it"),
    ],
)
def test_tiers(backend: str, tier: str, grade: str, seen: str, tmp_path: Path):
    (found,) = site_paths.tier_folders(site(tmp_path, backend, tier))
    assert (found.subject, found.grade.value) == ("tier disk", grade)
    assert seen in found.seen
    assert (site_paths.tiers.folder_of(site(tmp_path).tiers[0]).exists()) == (seen == "usable")


def test_a_tier_without_room_is_warned_of(tmp_path: Path):
    found = site_paths._tier("disk", Tier(name="disk", folder=str(tmp_path), budget=0))
    assert (found.grade.value, found.seen.endswith("has no room")) == ("warn", True)


def test_a_tier_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").touch()
    (found,) = site_paths.tier_folders(site(tmp_path, tier=str(tmp_path / "file" / "below")))
    assert found.grade.value == "fail"


@pytest.mark.parametrize(
    ("script", "grade", "seen"),
    [
        (None, "warn", "is not on this machine"),
        ("echo 0.0.1", "fail", "has headrace 0.0.1, this is"),
        ("echo one >&2; echo two >&2; exit 1", "fail", "python: two"),
        (f"echo {site_paths.__version__}", "warn", "which other machines hardly see"),
    ],
)
def test_the_python_of_the_nodes(script: str | None, grade: str, seen: str, tmp_path: Path):
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    role = Role.model_validate(
        {"backend": "slurm", "kind": "gang", "batch": {"python": str(python)}}
    )
    found = site_paths.python_of_nodes(role, is_proved=False)
    assert (found.subject, found.grade.value) == ("python", grade)
    assert seen in found.seen
    assert site_paths.python_of_nodes(role, is_proved=True).grade.value == "ok"


@pytest.mark.parametrize(
    ("image", "grade"), [("docker://busybox", "ok"), (sys.executable, "ok"), ("/no.sif", "warn")]
)
def test_the_image_of_a_container(image: str, grade: str):
    container = {"runtime": "apptainer", "image": image}
    role = {"backend": "slurm", "kind": "gang", "batch": {"container": container}}
    found = told(site_paths.container_image(Role.model_validate(role)))
    assert found == {"container": grade}
    without = Role.model_validate({"backend": "slurm", "kind": "gang"})
    assert list(site_paths.container_image(without)) == []


_PLAIN = "stripe_count:  {} stripe_size:   1048576 pattern:       raid0 stripe_offset: -1"
_GROWING = """\
  lcm_entry_count:   2
    lcme_extent.e_start: 0
    lcme_extent.e_end:   1073741824
      stripe_count:  1       stripe_size:   1048576       pattern:       raid0
    lcme_extent.e_start: 1073741824
    lcme_extent.e_end:   EOF
      stripe_count:  {}       stripe_size:   1048576       pattern:       raid0
"""


@pytest.mark.parametrize(
    ("options", "layout", "wanted"),
    [
        ("rw,flock", _GROWING.format(8), {"stripes": ("ok", "files on up to 8 OSTs")}),
        ("rw,flock", _PLAIN.format(-1), {"stripes": ("ok", "files on up to all OSTs")}),
        ("rw,flock", _PLAIN.format(1), {"stripes": ("warn", "setstripe -E 1G -c 1 -E -1 -c 8")}),
        ("rw,flock", _PLAIN.format(0), {"stripes": ("warn", "one OST each")}),
        (
            "rw,localflock",
            _PLAIN.format(4),
            {"lustre": ("fail", "a mount with `flock`"), "stripes": ("ok", "4 OSTs")},
        ),
        ("rw,flock", None, {"stripes": ("warn", "lfs cannot be run: No such file")}),
    ],
)
def test_lustre_layout_and_mount(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    layout: str | None,
    wanted: dict[str, tuple[str, str]],
):
    """By a stand-in for `lfs`: no Lustre can be had here."""
    table = f"10.0.0.1@tcp:/scratch {tmp_path} lustre {options} 0 0\n"
    tell_mounts(monkeypatch, tmp_path, table)
    (tmp_path / "bin").mkdir()
    if layout is not None:
        program = tmp_path / "bin" / "lfs"
        asked = f'[ "$*" = "getstripe -d {tmp_path}" ] || exit 2'
        program.write_text(f"#!/bin/sh\n{asked}\n/bin/cat << END\n{layout}\nEND\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = {each.subject: each for each in file_systems.lustre(tmp_path)}
    assert {name: each.grade.value for name, each in found.items()} == {
        name: grade for name, (grade, _) in wanted.items()
    }
    for name, (_, text) in wanted.items():
        assert text in f"{found[name].seen} {found[name].advice}"
