"""Mistakes about sources of files, and about how their fields are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

from headrace.packing.fields import NUM_TRIED
from support.hints import Mistake
from support.source_files import npy, png, wav

RUN = "run"
"""Key of a state: the command that the hint holds is run."""


def link_to(place: str, *, write: bool = True) -> Callable[[Path], None]:
    """Something elsewhere, and a link to it in the source."""

    def make(at: Path) -> None:
        target = at / "elsewhere" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if write:
            target.write_bytes(png(1))
        link = at / "source" / place
        link.parent.mkdir(exist_ok=True, parents=True)
        link.symlink_to(target)

    return make


def linked_folder(at: Path) -> None:
    (at / "elsewhere/cat").mkdir(parents=True)
    (at / "elsewhere/cat/1.png").write_bytes(png(1))
    (at / "source/cat").symlink_to(at / "elsewhere/cat")


def copied_folder(at: Path) -> None:
    (at / "source/cat").unlink()
    (at / "elsewhere/cat").rename(at / "source/cat")


def unnamed(at: Path) -> None:
    name = b"caf\xe9.png"
    (at / "source").mkdir(exist_ok=True)
    Path(str(at / "source") + "/" + name.decode(errors="surrogateescape")).write_bytes(png(1))


def renamed(at: Path) -> None:
    (bad,) = (at / "source").iterdir()
    bad.rename(bad.with_name("cafe.png"))


def without_plans(at: Path) -> None:
    for plan in at.glob("site/datasets/*/parts/*.plan.arrow"):
        plan.unlink()


def damaged_plans(at: Path) -> None:
    for plan in at.glob("site/datasets/*/parts/*.plan.arrow"):
        plan.write_bytes(b"no plan")


def without_shards(at: Path) -> None:
    for shards in at.glob("site/datasets/*/shards"):
        rmtree(shards)


def use_packed(at: Path) -> dict[str, object]:
    (folder,) = (at / "site/datasets").glob("tiny-*")
    return {"dataset.source": None, "dataset.path": str(folder)}


CATS = {"cat/1.png": png(1), "dog/2.png": png(2), "dog/3.png": png(3)}
NONE = {"dataset.labels": "none"}
IMAGE = "pack.fields.image"
ROWS = "path,label\n1.png,cat\n2.png,dog\n"
FLAT = {"1.png": png(1), "2.png": png(2)}
INDEXED = {**FLAT, "dataset.index": "l.csv"}
GREY_AND_NOT = {"1.png": png(1), "2.png": png(2, mode="RGB"), **NONE}
SIZES = {"1.png": png(1), "2.png": png(2, (5, 4)), **NONE}
READERS = """
from pathlib import Path
import numpy as np
def listed(path): return [1.0]
def objects(path): return {"x": object()}
def raising(path):
    if path.endswith("1.dat"): raise ValueError("no")
    return {"x": np.zeros(2)}
def touching(path):
    path = Path(path)
    if not (seen := path.parent / ".seen").exists():
        seen.touch()
        (path.parent / "2.dat").write_bytes(b"22")
    return {"x": np.zeros(2)}
def good(path): return {"x": np.zeros(2)}
def several(path): yield from (good(path), good(path))
"""


def reader(name: str, **more: object) -> dict[str, object]:
    return {
        "1.dat": b"1", "2.dat": b"2", "../code/MODULE.py": READERS,
        "dataset.reader": {"_target_": f"MODULE.{name}"},
        "dataset.include": ["*.dat"], **more,
    }  # fmt: skip


MISTAKES = (
    # adding to a dataset
    Mistake(
        what="does not tell what its shards hold",
        hint="Pack without pack.append",
        before={**CATS, "pack.append": True},
        given={"dog/4.png": png(4), "": without_plans},
        followed=({"pack.append": False},),
    ),
    Mistake(
        what="is damaged, or an earlier release wrote it",
        hint="Pack without pack.append",
        before={**CATS, "pack.append": True},
        given={"dog/4.png": png(4), "": damaged_plans},
        followed=({"pack.append": False},),
    ),
    Mistake(
        what="The splits of … packed samples cannot be kept",
        hint="Pack without pack.append",
        before={
            **INDEXED,
            "l.csv": "path,label,s\n1.png,cat,train\n2.png,dog,test\n",
            "dataset.split_field": "s",
            "pack.append": True,
        },
        given={"l.csv": "path,label,s\n1.png,cat,test\n2.png,dog,train\n"},
        followed=({"pack.append": False},),
    ),
    Mistake(
        what="samples changed since they were packed into",
        hint="pack without pack.append",
        before={**CATS, "pack.append": True},
        given={"dog/3.png": png(30, mode="L")[:40] + png(3)[40:]},
        followed=({"pack.append": False},),
    ),
    Mistake(
        what="has a field …, the new samples",
        hint="Pack without pack.append",
        before={**INDEXED, "l.csv": ROWS, "pack.append": True},
        given={"3.png": png(3), "l.csv": "path,label,n\n1.png,cat,1\n2.png,dog,1\n3.png,cat,1\n"},
        followed=({"pack.append": False},),
    ),
    # values and their shapes
    Mistake(
        what="None of the first",
        hint="Repair or remove these files or rows, name what stands for missing values",
        given={f"a/{n}.png": b"x" for n in range(NUM_TRIED)} | {"b/1.png": png(1)},
        followed=(
            {f"a/{n}.png": png(n) for n in range(NUM_TRIED)},
            {f"a/{n}.png": None for n in range(NUM_TRIED)},
            {"dataset.include": ["b/*"]},
        ),
    ),
    Mistake(
        what="has shape",
        hint="Some images are grey and some are not",
        given=GREY_AND_NOT,
        followed=(
            {IMAGE: {"channels": 1}},
            {IMAGE: {"channels": 3}},
            {IMAGE: {"keep": "encoded"}},
        ),
    ),
    Mistake(
        what="has shape",
        hint="Some images are grey and some are not",
        given={**GREY_AND_NOT, IMAGE: {"keep": "decode", "mixed": "ragged"}},
        followed=({IMAGE: {"channels": 1, "mixed": "ragged"}}, {IMAGE: {"keep": "encoded"}}),
    ),
    Mistake(
        what="has shape",
        hint="Make all of equal size",
        given=SIZES,
        followed=(
            {"2.png": png(2)},
            {IMAGE: {"resize": [4, 4]}},
            {IMAGE: {"mixed": "resize"}},
            {IMAGE: {"mixed": "ragged"}},
            {IMAGE: {"keep": "encoded"}},
        ),
    ),
    Mistake(
        what="has shape",
        hint="Make all of equal dtype",
        given={"1.npy": npy([1.5]), "2.npy": npy([1]), **NONE},
        followed=({"2.npy": npy([1.0])}, {"pack.fields.array": {"dtype": "float32"}}),
    ),
    Mistake(
        what="has shape",
        hint="Make all of equal shape",
        given={"1.npy": npy([1]), "2.npy": npy([1, 2]), **NONE},
        followed=({"2.npy": npy([2])}, {"pack.fields.array": {"mixed": "ragged"}}),
    ),
    Mistake(
        what="has shape",
        hint="Make all of equally many axes",
        given={
            "1.npy": npy([1]),
            "2.npy": npy([[1]]),
            **NONE,
            "pack.fields.array": {"mixed": "ragged"},
        },
        followed=({"2.npy": npy([2])},),
    ),
    Mistake(
        what="has shape",
        hint="Some sounds have one channel and some several",
        given={
            "1.wav": wav(8000),
            "2.wav": wav(8000, (100, 2)),
            **NONE,
            "pack.fields.audio": {"keep": "decode"},
        },
        followed=({"2.wav": wav(8000)}, {"pack.fields.audio": {"keep": "encoded"}}),
    ),
    Mistake(
        what="A sound has",
        hint="Set pack.fields.",
        given={
            "1.wav": wav(8000),
            "2.wav": wav(4000),
            **NONE,
            "pack.fields.audio": {"keep": "decode"},
        },
        followed=({"pack.fields.audio": {"keep": "decode", "sample_rate": 8000}},),
    ),
    Mistake(
        what="samples cannot be read, more than the share of",
        hint="Repair or remove these files or rows",
        given={**CATS, "dog/3.png": b"x"},
        followed=({"dog/3.png": png(3)}, {"dog/3.png": None}, {"pack.max_quarantined": 0.5}),
    ),
    Mistake(
        what="No sample of split '",
        hint="Repair or remove these files",
        given={
            **INDEXED,
            "2.png": b"x",
            "pack.max_quarantined": 0.9,
            "l.csv": "path,label,split\n1.png,cat,test\n2.png,cat,val\n",
        },
        followed=(
            {"2.png": png(2)},
            {"2.png": None, "l.csv": "path,label,split\n1.png,cat,test\n"},
        ),
    ),
    Mistake(
        what="is not whole: ",
        hint="Pack the dataset again, or restore the shard",
        before=CATS,
        given={"": use_packed, " ": without_shards},
        followed=({"dataset.path": None, "dataset.source": "AT/source"},),
    ),
    # shares
    Mistake(
        what="samples at a share of",
        hint=", or add samples.",
        given={**FLAT, **NONE, "dataset.splits": {"train": 0.9, "test": 0.1}},
        followed=(
            {"dataset.splits": {"train": 0.5, "test": 0.5}},
            {f"{n}.png": png(n) for n in range(20)},
        ),
    ),
    Mistake(
        what="samples at a share of",
        hint="Samples of a group stay together. …, or add samples of other groups",
        given={
            **INDEXED,
            "dataset.splits": {"train": 0.5, "test": 0.5},
            "l.csv": "path,label,group\n1.png,cat,a\n2.png,cat,a\n",
        },
        followed=(
            {"l.csv": "path,label,group\n1.png,cat,a\n2.png,cat,a\n3.png,cat,b\n", "3.png": png(3)},
        ),
    ),
    Mistake(
        what="would be empty: split '",
        hint=", or add samples.",
        given={
            **{f"{n}.png": png(n) for n in range(4)},
            **NONE,
            "dataset.folds": 3,
            "dataset.splits": {"train": 0.5, "test": 0.5},
        },
        followed=({"dataset.folds": 2}, {f"{n}.png": png(n) for n in range(12)}),
    ),
    Mistake(
        what="would be empty: split '",
        hint=", or add samples of other groups",
        given={
            **{f"{n}.png": png(n) for n in range(5)},
            "dataset.index": "l.csv",
            "dataset.folds": 3,
            "dataset.splits": {"train": 0.6, "test": 0.4},
            "l.csv": "path,group\n0.png,a\n1.png,a\n2.png,b\n3.png,c\n4.png,c\n",
        },
        followed=(
            {"dataset.folds": 2},
            {
                **{f"{n}.png": png(n) for n in range(10)},
                "l.csv": "path,group\n" + "".join(f"{n}.png,{n}\n" for n in range(10)),
            },
        ),
    ),
    # options of fields
    Mistake(
        what="chunk_samples is set, but its codec is 'none'",
        hint="or leave chunk_samples out",
        given={**CATS, IMAGE: {"chunk_samples": 2}},
        followed=({IMAGE: {"chunk_samples": 2, "codec": "lz4"}}, {IMAGE: None}),
    ),
    Mistake(
        what="mixed is 'resize', but",
        hint="Only images can be resized. Valid: error, ragged",
        given={"1.npy": npy([1]), **NONE, "pack.fields.array": {"mixed": "resize"}},
        followed=(
            {"pack.fields.array": {"mixed": "error"}},
            {"pack.fields.array": {"mixed": "ragged"}},
        ),
    ),
    Mistake(
        what="pack.fields names '",
        hint="Fields found: ",
        given={**CATS, "pack.fields.img": {"channels": 1}},
        followed=({"pack.fields.img": None, IMAGE: {"channels": 1}},),
    ),
    Mistake(
        what="is of varying shape",
        hint="Codecs are for fields of one shape: leave it out",
        given={**CATS, IMAGE: {"mixed": "ragged", "codec": "lz4"}},
        followed=({IMAGE: {"mixed": "ragged"}},),
    ),
    Mistake(
        what="is set, but '…' is of kind",
        hint="Leave it out: it is for fields of kind",
        given={"1.npy": npy([1]), **NONE, "pack.fields.array": {"channels": 1}},
        followed=({"pack.fields.array": None},),
    ),
    Mistake(
        what="stays encoded",
        hint="keep to 'decode', or leave",
        given={**CATS, "pack.images": "encoded", IMAGE: {"channels": 1}},
        followed=({IMAGE: {"channels": 1, "keep": "decode"}}, {IMAGE: None}),
    ),
)
