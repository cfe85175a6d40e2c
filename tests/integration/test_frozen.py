"""`headrace rerun --frozen`: a package is another today, and the weights are the same."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.files.layout import RunFolder
from support.bad_input import HEADRACE, USAGE, Place, make_place, words
from support.leftovers import started_by

pytestmark = [pytest.mark.slow]

Done = subprocess.CompletedProcess[str]
_MODEL = """
import tinyscale
from blob_models import BlobModel


class Scaled(BlobModel):
    def __init__(self, **options):
        super().__init__(**options)
        for each in self.parameters():
            each.data.mul_(tinyscale.FACTOR)
"""


def write_wheel(folder: Path, version: str, factor: float) -> Path:
    """A wheel of one module, as a local index has it."""
    info = f"tinyscale-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    wheel = folder / f"tinyscale-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tinyscale.py", f"FACTOR = {factor}\n")
        file.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tinyscale\nVersion: {version}\n"
        )
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    return wheel


def uv(*arguments: str, text: str = "") -> str:
    program = [str(Path(sys.executable).parent / "uv"), *arguments]
    return subprocess.run(program, input=text, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A run of a recipe whose code imports `tinyscale` 1.0; today it is 2.0."""
    place = make_place(tmp_path_factory.mktemp("frozen"))
    lab, index = place.home / "lab", place.home / "index"
    lab.mkdir()
    (lab / "scaled.py").write_text(_MODEL)
    for version, factor in (("1.0", 0.5), ("2.0", 0.25)):
        wheel = write_wheel(index, version, factor)
        install = ("pip", "install", "--no-deps", "--offline")
        uv(*install, "--target", f"{place.home}/{version}", str(wheel))
        (origin,) = (place.home / version).glob("*.dist-info/direct_url.json")
        origin.unlink()  # as from an index
    code = [str(lab), str(Path(__file__).parents[1] / "support/training_code")]
    place.write_site(allowed_code=code)
    model = {"_target_": "scaled.Scaled", "notes": str(place.home)}
    place.write_recipe("scaled", code=code, model=model, train={"ranks_per_node": 1})
    done = place.headrace("run", "scaled", "--site", "here", **today(place, "1.0"))
    assert done.returncode == 0, done.stdout + done.stderr
    yield place
    for server in started_by("none", place.home):  # fork servers of the environment, idle
        server.terminate()
    shutil.rmtree(place.home / "environments", ignore_errors=True)


def rerun_frozen(place: Place, run_id: str, variables: dict[str, str]) -> Done:
    """The command alone: fork servers of its environment stay for the next."""
    return subprocess.run(
        [str(HEADRACE), "rerun", run_id, "--frozen"],
        env={**place.environment(), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def today(place: Place, version: str) -> dict[str, str]:
    """The variables of a terminal in which `tinyscale` has that version."""
    index = place.home / "index"
    return {
        "PYTHONPATH": f"{place.home}/{version}",
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(index),
        "GIT_DIR": os.devnull,  # edits of this repository while the test runs do not matter
    }


def test_the_packages_of_then_give_the_weights_of_then(place: Place) -> None:
    """Those of today's package are others."""
    run, variables = place.newest()[0], today(place, "2.0")
    then = run.outputs["train"]["weights_xxh3"]
    lock = RunFolder(Path(run.folder)).lock.read_text()
    words(lock, "tinyscale==1.0  # content ", "# local: headrace==", "torch==")
    words(place.shown("rerun", run.run_id, "--check").stdout, "packages tinyscale")
    frozen = rerun_frozen(place, run.run_id, variables)
    assert frozen.returncode == 0, frozen.stdout + frozen.stderr
    words(frozen.stdout, f"weights: {then}, the same as then")
    assert place.newest()[0].outputs["train"]["weights_xxh3"] == then
    (made,) = (place.home / "environments").glob("*/complete")
    assert (made.parent / "bin" / "torchrun").read_text().startswith(f"#!{made.parent}/bin/python")


def test_what_is_not_available_is_named_before_a_run_is_made(place: Place) -> None:
    """A version that the index lacks, other files of a version, another Python."""
    record, _ = place.newest()
    folder, before = RunFolder(Path(record.folder)), place.shown("runs", "--json").stdout
    lock, provenance = folder.lock.read_text(), folder.provenance.read_text()
    python = f'"python": "{platform.python_version()}"'
    assert python in provenance
    other = {
        folder.lock: {
            "tinyscale==3.0": lock.replace("tinyscale==1.0", "tinyscale==3.0"),
            "not available with the files of then: tinyscale==1.0": lock.replace(
                "tinyscale==1.0  # content ", "tinyscale==1.0  # content 0"
            ),
        },
        folder.provenance: {
            "python: uv failed: error: ": provenance.replace(python, '"python": "3.9.1"')
        },
    }
    variables = {**today(place, "2.0"), "UV_PYTHON_DOWNLOADS": "never"}
    for file, text in ((folder.lock, lock), (folder.provenance, provenance)):
        for expected, changed in other[file].items():
            file.write_text(changed)
            done = rerun_frozen(place, record.run_id, variables)
            file.write_text(text)
            assert done.returncode == USAGE, done.stdout + done.stderr
            words(" ".join(done.stderr.split()), expected)
    assert place.shown("runs", "--json").stdout == before


def test_uv_adds_the_hashes_of_wheels(place: Place) -> None:
    """`uv pip compile --generate-hashes --no-deps LOCK`, on an index in files."""
    lock = RunFolder(Path(place.newest()[0].folder)).lock.read_text()
    (line,) = (each for each in lock.splitlines() if each.startswith("tinyscale=="))
    (wheel,) = (place.home / "index").glob("tinyscale-1.0-*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    page = place.home / "simple" / "tinyscale" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{wheel.as_uri()}#sha256={digest}">{wheel.name}</a>')
    asked = ("pip", "compile", "--generate-hashes", "--no-deps", "-")
    done = uv(*asked, "--default-index", page.parents[1].as_uri(), text=line)
    words(done, "tinyscale==1.0 ", f"--hash=sha256:{digest}")
