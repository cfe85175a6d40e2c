"""Random crops at decoding: which parts, of which pixels, and the same for a place in the order."""

from __future__ import annotations

import io
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp

from headrace.data.dataset import OwnDataset, Reading, SampleDataset, SampleReader
from headrace.data.module import HeadraceDataModule
from headrace.data.transforms import RandomResizedCrop
from headrace.errors import ManifestError, RecipeError, UnreadableError, UserError
from headrace.fields import image as image_field
from headrace.fields import jpeg
from headrace.fields.image import ImageKind
from headrace.files.manifest import FieldInfo
from headrace.recipe.crop import Crop, crops_of
from headrace.recipe.recipe import Recipe
from support.loaders import settings_of_ranks, steps_of
from support.shards import write_dataset, write_fields
from support.training import make_recipe

TRAIN, VAL, BATCH, SIZE = 36, 9, 12, 24
NAME = "headrace.data.transforms.RandomResizedCrop"


def picture(height: int, width: int, seed: int = 0, grey: bool = False) -> Image.Image:
    """Smooth, with some noise: as a photograph."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
    pixels = np.clip(smooth + rng.normal(0, 9, smooth.shape), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels[:, :, 0] if grey else pixels)


def saved(image: Image.Image, form: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def seeds(seed: int | None) -> list[int] | None:
    return None if seed is None else [seed]


def torchvisions(height: int, width: int, scale: tuple, ratio: tuple) -> tuple:
    """Top, left, height and width, written as torchvision's `get_params`."""
    area, log_ratio = height * width, torch.log(torch.tensor(ratio))
    for _ in range(10):
        target_area = area * torch.empty(1).uniform_(scale[0], scale[1]).item()
        aspect_ratio = torch.exp(torch.empty(1).uniform_(*log_ratio.tolist())).item()
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            i = torch.randint(0, height - h + 1, size=(1,)).item()
            j = torch.randint(0, width - w + 1, size=(1,)).item()
            return i, j, h, w
    if width / height < min(ratio):
        w, h = width, round(width / min(ratio))
    elif width / height > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(("height", "width", "scale", "ratio"), [
    (375, 500, (0.08, 1.0), (3 / 4, 4 / 3)), (500, 333, (0.5, 0.9), (0.5, 1.5)),
    (100, 700, (0.08, 1.0), (3 / 4, 4 / 3)), (700, 100, (0.9, 1.0), (3 / 4, 4 / 3)),
    (31, 29, (0.05, 0.3), (1.0, 1.0)),
])  # fmt: skip
def test_parts_are_distributed_as_those_of_torchvision(height, width, scale, ratio):
    crop, numbers = Crop(scale=scale, ratio=ratio), 4000
    torch.manual_seed(1)
    theirs = np.array([torchvisions(height, width, scale, ratio) for _ in range(numbers)])
    boxes = np.array([crop.box(random.Random(str(n)), height, width) for n in range(numbers)])
    top, left, bottom, right = boxes.T
    ours = np.array([top, left, bottom - top, right - left]).T
    assert (boxes >= 0).all()
    assert (bottom <= height).all()
    assert (right <= width).all()
    for of in (
        lambda b: b[:, 0], lambda b: b[:, 1], lambda b: b[:, 2], lambda b: b[:, 3],
        lambda b: b[:, 2] * b[:, 3], lambda b: np.log(b[:, 3] / b[:, 2]),
        lambda b: b[:, 0] / (height - b[:, 2] + 1), lambda b: b[:, 1] / (width - b[:, 3] + 1),
    ):  # fmt: skip
        assert ks_2samp(of(ours), of(theirs)).pvalue > 1e-4


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 1000), (1000, 1), (2, 3), (5, 40)])
@pytest.mark.parametrize("ratio", [(3 / 4, 4 / 3), (0.001, 0.001), (1000, 1000)])
def test_each_image_has_a_part(height, width, ratio):
    crop = Crop(ratio=ratio)
    for drawn in (None, *map(random.Random, range(50))):
        top, left, bottom, right = crop.box(drawn, height, width)
        assert 0 <= top < bottom <= height
        assert 0 <= left < right <= width


def test_a_share_is_mirrored():
    content, kind = saved(picture(40, 40), "PNG"), ImageKind()
    whole = {"size": 24, "scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
    plain = RandomResizedCrop(**whole, flip=0).decode([1], kind, 0, content)
    assert (
        RandomResizedCrop(**whole, flip=1).decode([1], kind, 0, content) == plain[:, ::-1]
    ).all()
    some = RandomResizedCrop(**whole, flip=0.25)
    found = [some.decode(seeds(seed), kind, 0, content) for seed in range(2000)]
    mirrored = sum(bool((each != plain).any()) for each in found)
    assert 420 < mirrored < 580  # of 500, with a deviation of 19
    central = RandomResizedCrop(size=24).decode(None, kind, 0, content)
    assert (some.decode(None, kind, 0, content) == central).all()


def by_pillow(content: bytes, box: tuple, size: int) -> np.ndarray:
    """As torchvision resizes an image of Pillow."""
    top, left, bottom, right = box
    image = Image.open(io.BytesIO(content)).convert("RGB").crop((left, top, right, bottom))
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)).astype(int)


FILES = {
    "jpeg": saved(picture(61, 83)), "progressive": saved(picture(60, 83), progressive=True),
    "4:4:4": saved(picture(83, 61), subsampling=0), "4:2:2": saved(picture(61, 84), subsampling=1),
    "restarts": saved(picture(61, 83), restart_marker_blocks=2),
    "grey": saved(picture(61, 83, grey=True)), "png": saved(picture(61, 83), "PNG"),
    "cmyk": saved(picture(61, 83).convert("CMYK")), "webp": saved(picture(61, 83), "WEBP"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_pixels_are_those_of_the_whole_image(name):
    content, kind = FILES[name], ImageKind()
    height, width = kind.decode(content).shape[:2]
    crop = RandomResizedCrop(size=32, flip=0, scale=(0.3, 1))
    for seed in (None, *range(20)):
        drawn = None if seed is None else random.Random(f"{seed} image")
        _ = drawn and drawn.random()  # whether it is mirrored
        box = crop.box(drawn, height, width)
        if min(box[2] - box[0], box[3] - box[1]) < 2 * crop.size:
            found = crop.decode(seeds(seed), kind, 0, content)
            assert found.shape == (crop.size, crop.size, 3)
            assert found.dtype == np.uint8
            if name != "cmyk":  # which headrace converts by its profile of colours
                assert np.abs(found - by_pillow(content, box, crop.size)).max() <= 2


@pytest.mark.parametrize("shrink", [2, 4, 8])
@pytest.mark.parametrize("size", [(1033, 1204), (1024, 1200)])
def test_what_becomes_much_smaller_is_decoded_smaller(shrink, size, monkeypatch):
    image = picture(*size)
    content, decoded = saved(image, quality=95), []
    plain = jpeg.decode
    monkeypatch.setattr(
        jpeg, "decode", lambda c, h, s=1: decoded.append(s) or plain(c, h, s)
    )  # fmt: skip
    crop = RandomResizedCrop(size=640 // shrink, scale=(0.4, 0.9), ratio=(1, 1), flip=0)
    for seed in range(8):
        found = crop.decode([seed], ImageKind(), 0, content)
        drawn = random.Random(f"{seed} image")
        drawn.random()
        top, left, bottom, right = box = crop.box(drawn, *size)
        expected = 2 ** int(math.log2(max(min(bottom - top, right - left) // crop.size, 1)))
        assert decoded.pop() == min(expected, 8)
        assert np.abs(found - by_pillow(content, box, crop.size)).mean() < 3
    assert not decoded


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("turns", [True, False])
def test_turned_images_are_cropped_as_they_are_shown(turn, turns):
    exif = Image.Exif()
    exif[0x0112] = turn
    content, kind = saved(picture(61, 83), exif=exif), ImageKind(turns=turns)
    whole = kind.decode(content)
    seen = []

    def choose(height: int, width: int) -> tuple[int, int, int, int]:
        seen.append((height, width))
        return 3, 5, height - 7, width - 1

    part = kind.decode_part(content, choose, 1000)
    assert seen == [whole.shape[:2]]
    np.testing.assert_array_equal(part, whole[3:-7, 5:-1])


def test_without_simplejpeg_parts_have_the_same_pixels(monkeypatch):
    crop = RandomResizedCrop(size=60)
    found = crop.decode([3], ImageKind(), 0, FILES["jpeg"])
    monkeypatch.setattr(jpeg, "_simplejpeg", lambda: None)
    np.testing.assert_array_equal(crop.decode([3], ImageKind(), 0, FILES["jpeg"]), found)


def test_damaged_images_are_errors():
    for content in (b"", b"\xff\xd8\xff", FILES["jpeg"][:300], FILES["png"][:300]):
        with pytest.raises(UnreadableError):
            RandomResizedCrop().decode([1], ImageKind(), 0, content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Photographs of many sizes, some grey, and a picture of pixels."""
    folder = tmp_path_factory.mktemp("crops") / "dataset"
    fields = (
        FieldInfo(name="image", dtype="uint8", layout="ragged", encoding="jpeg"),
        FieldInfo(name="words", dtype="uint8", layout="ragged", encoding="text"),
        FieldInfo(name="label", dtype="int64", layout="fixed"),
    )

    def add(writer, ids):
        images = [picture(40 + i % 7, 50 + i % 5, i, grey=i % 6 == 0) for i in ids.tolist()]
        writer.add_ragged("image", [saved(each) for each in images])
        writer.add_ragged("words", [f"photograph {i}".encode() for i in ids])
        writer.add_fixed("label", ids)

    write_fields(folder, fields, add, splits={"train": TRAIN, "val": VAL}, shard_samples=7)
    return folder


def modules(
    folder: Path, world_size: int = 1, *others, prefetch: int = 4
) -> list[HeadraceDataModule]:
    reading = Reading(transforms=(RandomResizedCrop(size=SIZE), *others))
    keys = {"batch": BATCH, "seed": 5, "reading": reading, "prefetch": prefetch}
    return [HeadraceDataModule(each) for each in settings_of_ranks(folder, world_size, **keys)]


def epoch_of(ranks: list[HeadraceDataModule], epoch: int) -> list[torch.Tensor]:
    steps = steps_of([module.train_dataloader() for module in ranks], epoch)
    return [torch.cat([batch["image"] for batch in step]) for step in steps]


def whole(sample, generator=None):
    """A second transform."""
    assert sample["image"].shape == (SIZE, SIZE, 3)
    return {**sample, "noise": torch.rand((), generator=generator) if generator else -1.0}


def test_crops_depend_on_seed_epoch_and_place_only(folder, monkeypatch):
    expected = epoch_of(modules(folder), 0)
    assert [each.shape for each in expected] == [(BATCH, SIZE, SIZE, 3)] * (TRAIN // BATCH)
    for world_size in (2, 3):
        assert all(map(torch.equal, epoch_of(modules(folder, world_size), 0), expected))
    assert all(map(torch.equal, epoch_of(modules(folder, 1, whole), 0), expected))
    assert all(map(torch.equal, epoch_of(modules(folder, prefetch=0), 0), expected))
    monkeypatch.setattr("headrace.data.decode.num_cores", lambda: 5)
    (module,) = modules(folder)
    assert all(map(torch.equal, epoch_of([module], 0), expected))
    later = epoch_of([module], 1)
    assert not any(map(torch.equal, later, expected))
    assert all(map(torch.equal, epoch_of([module], 0), expected))


def test_a_resume_takes_the_same_crops(folder):
    expected = epoch_of(modules(folder), 1)
    (module,) = modules(folder)
    module.train_dataloader().set_epoch(1)
    batches = iter(module.train_dataloader())
    next(batches)
    state = module.state_dict()
    later = modules(folder, 3)
    for each in later:
        each.load_state_dict(state)
    assert all(map(torch.equal, epoch_of(later, 1), expected[1:]))


def test_validation_takes_the_centre(folder):
    for others in ((), (whole,)):
        (module,) = modules(folder, 1, *others)
        for loader in (module.val_dataloader(), module.val_dataloader()):
            batches = list(loader)
            found = torch.cat([batch["image"] for batch in batches])
            numbers = torch.cat([batch["label"] for batch in batches]).tolist()
            for number, image in zip(numbers, found, strict=True):
                height, width = 40 + number % 7, 50 + number % 5
                side = round(height * 7 / 8)
                top, left = (height - side) // 2, (width - side) // 2
                content = saved(picture(height, width, number, grey=number % 6 == 0))
                expected = by_pillow(content, (top, left, top + side, left + side), SIZE)
                assert np.abs(image.numpy() - expected).max() <= 2


def test_samples_for_a_loader_of_the_users_are_cropped(folder):
    samples = SampleDataset(folder, "train", transforms=[RandomResizedCrop(size=9), dict])
    assert samples[3]["image"].shape == (9, 9, 3)
    assert samples[3]["words"] == "photograph 3"


CROP, OTHER = {"_target_": NAME}, {"_target_": "my.Own"}


def cropping(*transforms: dict, pack: dict | None = None, **data: dict) -> Recipe:
    """A recipe whose dataset is not packed yet."""
    return make_recipe(
        {
            "model": {"_target_": "a.B"},
            "data": {"sample_transforms": transforms, **data},
            "pack": {"images": "encoded"} if pack is None else pack,
            "dataset": {"name": "photographs", "source": "photographs"},
        }
    )


@pytest.mark.parametrize(("recipe", "text"), [
    (cropping({**CROP, "size": 0}), "size: give an integer"),
    (cropping({**CROP, "size": [224, 200]}), "size: give an integer"),
    (cropping({**CROP, "scale": [1, 0.1]}), "scale: 1 is more than 0.1"),
    (cropping({**CROP, "scale": [0, 1]}), "scale"),
    (cropping({**CROP, "ratio": [2, 1]}), "ratio: 2 is more than 1"),
    (cropping({**CROP, "ratio": [0.5]}), "ratio"),
    (cropping({**CROP, "ratio": [float("nan"), 1]}), "ratio"),
    (cropping({**CROP, "flip": 1.5}), "flip"),
    (cropping({**CROP, "padding": 3}), "unknown key 'padding'"),
    (cropping({**CROP, "_args_": [224]}), "unknown key '_args_'"),
    (cropping(OTHER, CROP), r"sample_transforms\[1\] crops 'image' at decoding, but comes later"),
    (cropping(CROP, CROP), r"sample_transforms\[1\] crops 'image' at decoding, but comes later"),
    (cropping(CROP, dataset=OTHER), "crops 'image' at decoding, but comes later"),
    (cropping(transforms=(CROP,)), r"data.transforms\[0\] crops 'image' at decoding, but comes la"),
    (cropping(CROP, augment=(CROP,)), r"data.augment\[0\] crops 'image' at decoding, but comes la"),
    (cropping(CROP, pack={}), "at decoding, but it is packed as pixels"),
    (cropping({**CROP, "field": "b"}, pack={}), "crops 'b' at decoding, but it is packed as pixe"),
])  # fmt: skip
def test_wrong_uses_are_named_before_a_machine_is_used(recipe, text):
    with pytest.raises(RecipeError, match=text):
        crops_of(recipe)


def test_crops_come_first():
    several = cropping({**CROP, "size": 32}, {**CROP, "field": "b"}, OTHER)
    keys = ["data.sample_transforms[0]", "data.sample_transforms[1]"]
    assert list(crops_of(several)) == keys
    crops_of(cropping(CROP, pack={"fields": {"image": {"keep": "encoded"}}}))
    assert crops_of(cropping(OTHER)) == {}


def test_fields_that_are_no_encoded_images_are_refused(folder, tmp_path):
    pixels = np.zeros((6, 8, 8, 3), np.uint8)
    write_dataset(tmp_path / "d", {"image": pixels}, splits={"train": 6})
    (module,) = modules(folder)
    dataset = module.train_loader.dataset
    for field, error in (("words", UserError), ("label", UserError), ("imag", ManifestError)):
        with pytest.raises(error, match=f"'{field}'"):
            SampleReader(dataset, Reading(transforms=(RandomResizedCrop(field=field),)))
    with pytest.raises(UserError, match="needs encoded images, which the field 'image'"):
        SampleDataset(tmp_path / "d", "train", transforms=[RandomResizedCrop()])
    crop = RandomResizedCrop()
    for late in ([dict, crop], [crop, crop], [crop, dict, crop], [dict, crop, dict]):
        with pytest.raises(UserError, match="comes after 'image' is decoded"):
            _ = SampleDataset(folder, "train", transforms=late)[0]
    own = Reading(transforms=(crop,), own=OwnDataset("list", list))
    with pytest.raises(UserError, match="comes after 'image' is decoded"):
        SampleReader(dataset, own).samples(np.arange(2))


def test_the_orientation_is_read_only_where_there_may_be_one(monkeypatch):
    """It takes Pillow, and the interpreter's lock."""
    monkeypatch.setattr(image_field, "_open_image", lambda _: pytest.fail("opened"))
    assert RandomResizedCrop(size=32).decode([1], ImageKind(), 0, FILES["jpeg"]).shape == (
        32,
        32,
        3,
    )
