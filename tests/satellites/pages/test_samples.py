"""Samples of a dataset on pages: every kind of field, any shape and dtype, and damage."""

from __future__ import annotations

import base64
import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import soundfile
from PIL import Image

from headrace.errors import DataError, UnknownNameError, UserError
from headrace.files.manifest import FieldInfo, Manifest, ShardInfo
from headrace.states import StepState
from headrace_bench.shards import ShardWriter
from headrace_pages import sample_page, sample_process, samples
from headrace_pages.drawn import MOST_PIXELS, MOST_STRETCHES, Drawn, drawn
from headrace_pages.sample_page import SampleProcess
from headrace_pages.samples import FieldOfSample, SampleQuestion, read_sample
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.shards import write_dataset, write_identified
from support.waiting import wait_until

NUM = 6


def encoded(number: int, kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "png":
        Image.new("RGB", (9, 8), (number, 0, 7)).save(file, kind)
    else:
        soundfile.write(file, np.full(100, number / NUM), 8000, format=kind)
    return file.getvalue()


def ragged(name: str, **options: Any) -> FieldInfo:
    return FieldInfo.model_validate({"dtype": "uint8", "layout": "ragged", "name": name, **options})


FIELDS = (
    FieldInfo(
        name="lz4", dtype="float32", shape=(8, 9), layout="fixed", codec="lz4", chunk_samples=2
    ),
    ragged("film", dtype="uint16", ndim=3),
    ragged("bytes"),
    ragged("text", encoding="text"),
    ragged("png", encoding="png"),
    ragged("bad", encoding="png"),
    ragged("wav", encoding="wav"),
    FieldInfo(name="label", dtype="int64", layout="fixed"),
)


@pytest.fixture
def every_kind(tmp_path: Path) -> SampleQuestion:
    """The first sample of a dataset with fields of all kinds, in two shards."""
    folder, shards = tmp_path / "kinds", []
    (folder / "shards").mkdir(parents=True)
    for ids in ([0, 1, 2, 3], [4, 5]):
        file = f"shards/train-{len(shards)}.h5"
        writer = ShardWriter("train", np.array(ids), [f"{i}.x" for i in ids])
        pictures = np.full((len(ids), 8, 9), 0.5, np.float32) + np.array(ids)[:, None, None]
        writer.add_fixed("lz4", pictures, codec="lz4", chunk_samples=2)
        writer.add_arrays("film", [np.full((i + 2, 8, 9), i, np.uint16) for i in ids])
        writer.add_ragged("bytes", [bytes(40 + i) for i in ids])
        writer.add_ragged("text", [("ä" * 20_000 if i else "<b>ä").encode() for i in ids])
        writer.add_ragged("png", [encoded(i, "png") for i in ids])
        writer.add_ragged("bad", [b"no image" for _ in ids])
        writer.add_ragged("wav", [encoded(i, "wav") for i in ids])
        writer.add_fixed("label", np.array(ids) % 2)
        written = writer.publish(folder / file)
        shards.append(
            ShardInfo(
                file=file, split="train", num_samples=len(ids),
                num_bytes=written.num_bytes, xxh3_128=written.xxh3_128,
            )
        )  # fmt: skip
    manifest = Manifest(
        name="kinds", fingerprint="", pack_key="k", fields=FIELDS, classes=("even", "odd"),
        splits={"train": NUM}, shards=tuple(shards),
    )  # fmt: skip
    known = write_identified(folder, manifest).fingerprint
    return SampleQuestion(folder=str(folder), fingerprint=known, split="train", index=0)


def fields_of(question: SampleQuestion, **changes: Any) -> dict[str, FieldOfSample]:
    sample = read_sample(question.model_copy(update=changes))
    return {field.name: field for field in sample.fields}


def test_every_kind_of_field_is_shown(every_kind):
    found = fields_of(every_kind)
    assert {name: field.drawn.kind for name, field in found.items() if field.drawn} == {
        "lz4": "picture", "film": "picture", "bytes": "waves", "png": "picture", "wav": "waves",
        "label": "text",
    }  # fmt: skip
    assert found["text"].text == "<b>ä"
    assert (found["label"].text, found["label"].drawn.text) == ("even", "0")
    assert found["bad"].problem == "neither PNG, JPEG, BMP, WebP, GIF nor TIFF"
    later = fields_of(every_kind, index=5, frame=6)
    assert (later["film"].drawn.num_frames, later["film"].drawn.frame) == (7, 6)
    assert (later["lz4"].drawn.minimum, later["bytes"].drawn.shape) == (5.5, (45,))
    assert later["label"].text == "odd"
    assert later["text"].text.endswith("… and 10,000 more letters")
    assert later["wav"].drawn.maximum == pytest.approx(5 / 6, abs=1e-3)


def test_a_sample_is_found_by_its_place_and_by_its_class(every_kind):
    def found(index: int, **how: Any) -> int:
        return read_sample(every_kind.model_copy(update={"index": index, **how})).index

    sample = read_sample(every_kind.model_copy(update={"index": 4}))
    assert (sample.source, sample.shard, sample.num_samples) == ("4.x", "shards/train-1.h5", NUM)
    assert [found(index, label=1) for index in (0, 1, 2, 4)] == [1, 1, 3, 5]
    assert [found(index, label=0, is_back=True) for index in (5, 4, 3, 0)] == [4, 4, 2, 0]
    for index, how in (
        (NUM, {}),
        (-1, {}),
        (0, {"split": "val"}),
        (5, {"label": 0}),
        (0, {"label": 9}),
    ):
        with pytest.raises(UnknownNameError):
            found(index, **how)
    with pytest.raises(UnknownNameError, match=r"(?s)no split 'val'.*Valid: train"):
        found(0, split="val")


def test_what_is_too_large_is_not_decoded(every_kind, monkeypatch):
    monkeypatch.setattr(samples, "MOST_BYTES", 20)
    found = fields_of(every_kind)
    assert "are too many to decode for a view" in found["png"].problem
    assert "are too many to decode for a view" in found["lz4"].problem
    assert found["film"].drawn is not None


def test_a_shard_that_is_cut_gone_or_of_another_dataset_is_named(every_kind):
    shard = Path(every_kind.folder, "shards/train-0.h5")
    os.truncate(shard, 100)
    with pytest.raises(DataError, match="is missing, or not"):
        read_sample(every_kind)
    shard.unlink()
    with pytest.raises(DataError, match="is missing, or not"):
        read_sample(every_kind)
    assert read_sample(every_kind.model_copy(update={"index": 4})).index == 4
    with pytest.raises(DataError, match="another content"):
        read_sample(every_kind.model_copy(update={"fingerprint": "0"}))


def readers() -> set[psutil.Process]:
    """Processes of this one that read samples."""
    found = psutil.Process().children()
    return {each for each in found if sample_process.__name__ in each.cmdline()}


def test_a_process_that_dies_or_hangs_costs_one_answer(every_kind):
    (hanging := Path(every_kind.folder, "hanging")).mkdir()
    os.mkfifo(hanging / "manifest.json")
    with pytest.raises(DataError, match="ended by signal SIGALRM"):
        SampleProcess(patience_s=0.1).ask(every_kind.model_copy(update={"folder": str(hanging)}))
    others, reader = readers(), SampleProcess()
    asking = threading.Thread(target=reader.ask, args=(every_kind,))
    asking.start()
    task = Path(f"/proc/self/task/{asking.native_id}")
    wait_until(lambda: not task.exists(), 60, "the thread to end, as those of servers do")
    (first,) = readers() - others
    with pytest.raises(UnknownNameError, match="no sample 99"):
        reader.ask(every_kind.model_copy(update={"index": 99}))
    assert readers() - others == {first}
    first.kill()
    with pytest.raises(DataError, match="ended by signal SIGKILL"):
        reader.ask(every_kind)
    assert reader.ask(every_kind).index == 0
    assert readers() - others != {first}
    reader._process.end()
    assert readers() == others


def packed(location: str, fingerprint: str) -> None:
    run = make_run()
    given = {"dataset": location, "fingerprint": fingerprint, "reused": False}
    told = {"state": StepState.SUCCEEDED, "outputs": given}
    attempt_row_of(run, "pack", lease_on_disk(run), **told)


def test_only_datasets_of_the_ledger_are_read(tmp_path):
    known = write_dataset(tmp_path / "d", {"x": np.arange(4)}, splits={"val": 4})
    question = SampleQuestion(split="val", index=2)
    for name in ("d", str(tmp_path / "d"), "../d"):
        with pytest.raises(UnknownNameError, match="No run of the ledger"):
            sample_page.sample_page(name, question)
    packed(str(tmp_path / "d"), known.fingerprint)
    found = sample_page.sample_page("d", question).fields[0]
    assert found.drawn.text == "2"
    packed("s3://bucket/far", "f")
    with pytest.raises(UserError, match="each view would download a whole shard"):
        sample_page.sample_page("f", question)
    sample_page._READER._process.end()


def pixels(shown: Drawn) -> np.ndarray[Any, Any]:
    """What a browser sees."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(shown.png))))


@pytest.mark.parametrize(
    ("shape", "kind", "seen", "num_frames"),
    [
        ((), "text", None, 1),
        ((3,), "text", None, 1),
        ((17,), "waves", None, 1),
        ((12, 5000), "waves", None, 1),
        ((5000, 2), "waves", None, 1),
        ((8, 8), "picture", (8, 8), 1),
        ((64, 500), "picture", (64, 500), 1),
        ((8, 8, 1), "picture", (8, 8), 1),
        ((8, 9, 3), "picture", (8, 9, 3), 1),
        ((8, 9, 4), "picture", (8, 9, 4), 1),
        ((3, 8, 9), "picture", (8, 9, 3), 1),
        ((1, 8, 9), "picture", (8, 9), 1),
        ((5, 8, 9), "picture", (8, 9), 5),
        ((4, 8, 9), "picture", (8, 9), 4),
        ((5, 8, 9, 3), "picture", (8, 9, 3), 5),
        ((5, 3, 8, 9), "picture", (8, 9, 3), 5),
        ((2, 6, 8, 9), "picture", (8, 9), 12),
        ((2, 3), "array", None, 1),
        ((0, 4), "array", None, 1),
        ((40, 8, 2), "array", None, 1),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "bool", "complex64"])
def test_what_an_array_is_shown_as(shape, kind, seen, num_frames, dtype):
    values = (np.arange(int(np.prod(shape))).reshape(shape) % 250).astype(dtype)
    shown = drawn(values)
    assert (shown.kind, shown.shape, shown.dtype) == (kind, shape, dtype)
    assert (pixels(shown).shape if shown.png else None) == seen
    assert shown.num_frames == num_frames
    assert bool(shown.waves) == (kind == "waves")


def test_pixels_of_8_bits_are_shown_as_they_are_others_are_stretched_and_it_is_said():
    photo = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    shown = drawn(photo)
    assert np.array_equal(pixels(shown), photo)
    assert shown.notes == ()
    assert np.array_equal(pixels(drawn(photo.transpose(2, 0, 1))), photo)
    depths = np.linspace(-5, 20, 64, dtype=np.float32).reshape(8, 8)
    depths[0, 1] = np.nan
    shown = drawn(depths)
    assert (pixels(shown).min(), pixels(shown).max()) == (0, 255)
    assert shown.notes == ("1 values are not finite", "black is -5, white is 20")
    assert (shown.minimum, shown.maximum) == (-5, 20)
    share = np.full((8, 8), 0.5)
    assert pixels(drawn(share)).max() == 128
    assert drawn(share).notes == ()
    mask = np.eye(8, dtype=np.uint8) * 3
    assert pixels(drawn(mask)).max() == 255
    assert drawn(mask).notes == ("black is 0, white is 3",)
    assert pixels(drawn(np.full((8, 8), np.inf))).max() <= 255


def test_one_of_several_pictures_is_chosen():
    film = np.stack([np.full((8, 8), 100 + frame, dtype=np.uint8) for frame in range(5)])
    assert [int(pixels(drawn(film, frame)).max()) for frame in (0, 4)] == [100, 104]
    assert drawn(film, 99).frame == 4


def test_a_large_picture_is_scaled_and_it_is_said():
    shown = drawn(np.zeros((3000, 4000), dtype=np.uint8))
    assert pixels(shown).shape == (384, MOST_PIXELS)
    assert (shown.width, shown.height) == (4000, 3000)
    assert "scaled from 3,000 x 4,000 to 384 x 512" in shown.notes
    assert "lowest, highest and mean of one in 3 values" in shown.notes


def test_of_a_long_wave_lowest_and_highest_of_each_stretch_are_kept():
    sound = np.zeros((480_000, 2), dtype=np.float32)
    sound[123_456, 1] = 0.9
    sound[400_000, 1] = np.nan
    shown = drawn(sound, is_sound=True, sample_rate=16_000)
    left, right = shown.waves
    assert shown.x_unit == "second"
    assert len(left.x) == len(left.y) == 2 * MOST_STRETCHES
    assert max(filter(None, right.y)) == pytest.approx(0.9)
    assert right.x[right.y.index(max(filter(None, right.y)))] == pytest.approx(7.7, abs=0.05)
    assert left.x[-1] == pytest.approx(30, abs=0.05)
    assert "lowest and highest of each of 1,000 stretches of 480,000 values" in shown.notes
    short = drawn(np.array([1.0, np.inf, 3.0]), is_sound=True)
    assert (short.waves[0].y, short.x_unit) == ((1.0, None, 3.0), "place")
    many = drawn(np.zeros((12, 200)))
    assert (len(many.waves), many.notes) == (8, ("the first 8 of 12 channels",))
