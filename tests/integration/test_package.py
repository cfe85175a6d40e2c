"""`headrace package` and `headrace adopt`: a run in another home, whose first home is gone."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from headrace.errors import DataError, UnknownNameError, UserError
from headrace.ledger.rows import RunRecord
from support.bad_input import Place, make_place, words

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    """A package with data of a trained and evaluated run, and the run; its home is gone."""
    place = make_place(tmp_path_factory.mktemp("packaged") / "first")
    evaluate = {"split": "val", "task": "multiclass"}
    place.write_recipe("blobs", evaluate=evaluate, train={"ranks_per_node": 1})
    done = place.run("blobs")
    assert done.returncode == 0, done.stdout + done.stderr
    record, _ = place.newest()
    run, (lease, *_) = Path(record.folder), sorted((place.home / "leases").iterdir())
    (run / ".env").write_text("TOKEN=geheim")
    (run / "link").symlink_to("/etc/passwd")
    (lease / "tls").mkdir(exist_ok=True)
    (lease / "tls" / "key.pem").write_text("geheim")
    file = place.home.parent / "run.tar"
    shown = place.shown("package", "latest", "--with-data", "-o", str(file))
    assert shown.exit_code == 0, shown.stderr
    with pytest.raises(UserError, match="exists"):
        place.shown("package", record.run_id, "-o", str(file))
    place.home.rename(place.home.with_name("gone"))
    return file, record


@pytest.fixture
def other(tmp_path: Path) -> Place:
    place = Place(tmp_path / "other")
    place.home.mkdir()
    place.write_site()
    return place


def adopt(place: Place, file: Path) -> None:
    shown = place.shown("adopt", str(file), "--site", "here")
    assert shown.exit_code == 0, shown.stderr


def files(place: Place) -> dict[Path, int]:
    """When each file was written, besides the ledger."""
    found = (each for each in place.home.rglob("*") if "ledger" not in each.name)
    return {each: each.stat().st_mtime_ns for each in found if each.is_file()}


def test_a_run_goes_on_in_another_home(packaged: tuple[Path, RunRecord], other: Place) -> None:
    """It is listed, exported, evaluated and repeated there; opened twice it is the same."""
    file, first = packaged
    run_id = first.run_id
    adopt(other, file)
    before, listed = files(other), other.shown("runs", "--json").stdout
    adopt(other, file)
    assert files(other) == before
    assert other.shown("runs", "--json").stdout == listed
    record, attempts = other.newest()
    assert (record.run_id, record.state, record.outputs.keys()) == (
        run_id, first.state, first.outputs.keys(),
    )  # fmt: skip
    assert abs(record.created_at - first.created_at) < 60
    assert [each.step for each in attempts] != []
    weights = other.home / "weights.pt"
    shown = other.shown("export", run_id, "-o", str(weights))
    assert shown.exit_code == 0, shown.stderr
    for command in ("evaluate", "rerun"):
        done = other.headrace(command, run_id)
        assert done.returncode == 0, done.stdout + done.stderr
    words(done.stdout, f"weights: {first.outputs['train']['weights_xxh3']}, the same as then")


def test_a_removed_run_is_neither_adopted_nor_packaged_again(
    packaged: tuple[Path, RunRecord], other: Place
) -> None:
    """A removal is a decision: it is not undone by a file."""
    adopt(other, packaged[0])
    shown = other.shown("clean", packaged[1].run_id, "--yes")
    assert shown.exit_code == 0, shown.output
    for command in (("adopt", str(packaged[0]), "--site", "here"), ("package", "latest")):
        with pytest.raises(UnknownNameError, match="was removed on"):
            other.shown(*command)


def test_keys_links_and_hidden_files_are_left_out(packaged: tuple[Path, RunRecord]) -> None:
    with tarfile.open(packaged[0]) as archive:
        names = archive.getnames()
        assert all(each.isreg() for each in archive.getmembers())
    assert b"geheim" not in packaged[0].read_bytes()
    assert not [each for each in names if "/." in each or each.endswith("/link") or "/tls" in each]


def entry(name: str, **changes: object) -> bytes:
    """An archive with one empty file."""
    member = tarfile.TarInfo(name)
    for key, value in changes.items():
        setattr(member, key, value)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(member)
    return content.getvalue()


ENTRIES = {
    "a way up": entry("runs/../../x"),
    "an absolute name": entry("/etc/x"),
    "a hidden file": entry("runs/a/.x"),
    "a file beside runs": entry("sites/a/x"),
    "a link": entry("runs/a/x", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a device": entry("runs/a/x", type=tarfile.CHRTYPE),
    "a hard link": entry("runs/a/x", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "no checksums": entry("runs/a/x"),
    "no archive": b"no archive" * 100,
    "nothing": b"",
}


@pytest.mark.parametrize("name", [*ENTRIES, "a byte", "a name", "an end", "half"])
def test_damage_leaves_nothing(packaged: tuple[Path, RunRecord], other: Place, name: str) -> None:
    """A package is opened completely, or refused by name."""
    content = bytearray(packaged[0].read_bytes())
    with tarfile.open(packaged[0]) as archive:
        member = next(each for each in archive.getmembers() if each.name.endswith(".ckpt"))
    changes = {"a byte": member.offset_data + member.size // 2, "a name": member.offset + 3}
    if name in changes:
        content[changes[name]] ^= 1
    cut = {"an end": member.offset, "half": member.offset_data + 100}
    file = other.home.parent / "damaged.tar"
    file.write_bytes(ENTRIES.get(name, content[: cut.get(name)]))
    before = sorted(os.listdir(other.home))
    with pytest.raises(DataError, match="is damaged, or no package of a run"):
        adopt(other, file)
    assert sorted(os.listdir(other.home)) == before
