"""Folders and the lock of builds."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.builds import build_environment, node_type, one_build

X86 = "processor\t: 0\nmodel name\t: A CPU\ncpu MHz\t\t: 2000.0\nflags\t\t: sse2 avx2\n"
POWER = (
    "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 2300.0MHz\n"
    "revision\t: 2.2 (pvr 004e 1202)\n"
)
ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve\nCPU part\t: 0xd4f\n"


def of(folder: Path, text: str, gpu: str = "") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "cpuinfo").write_text(text)
    (folder / "driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True, exist_ok=True)
    (folder / "driver/nvidia/gpus/0000:01:00.0/information").write_text(gpu)
    return node_type(folder)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        (X86, X86.replace("2000.0", "3100.5")),
        (X86, X86 + "\n" + X86.replace("processor\t: 0", "processor\t: 1")),
        (POWER, POWER.replace("2300", "3800")),
        (ARM, ARM.replace("2000", "1000")),
    ],
)
def test_clock_and_number_of_processors_are_of_no_type(text: str, other: str, tmp_path: Path):
    assert of(tmp_path, text) == of(tmp_path, other)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        (X86, X86.replace("avx2", "avx2 avx512f")),
        (X86, X86.replace("A CPU", "B CPU")),
        (POWER, POWER.replace("POWER9", "POWER10")),
        (ARM, ARM.replace(" sve", "")),
        (ARM, ARM.replace("0xd4f", "0xd0c")),
    ],
)
def test_what_a_build_depends_on_makes_a_type(text: str, other: str, tmp_path: Path):
    assert of(tmp_path, text) != of(tmp_path, other)


def test_gpus_and_compilers_make_a_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    types = {of(tmp_path, X86), of(tmp_path, X86, "Model: \t\t NVIDIA H200\n")}
    monkeypatch.setenv("CXX", "ls")
    types.add(of(tmp_path, X86))
    assert len(types) == 3


def test_folders_that_are_set_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/mine")
    assert build_environment() == {
        "NUMBA_CACHE_DIR": str(tmp_path / "headrace" / "builds" / node_type() / "numba")
    }


def test_the_lock_that_a_killed_build_left_is_removed(tmp_path: Path, monkeypatch):
    """torch.utils.cpp_extension would wait for it forever."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "torch"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/mine")
    left = tmp_path / "torch" / "blur" / "lock"
    left.parent.mkdir(parents=True)
    left.touch()
    with one_build():
        assert not left.exists()
