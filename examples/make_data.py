"""Makes the small datasets of the reference recipes: `python make_data.py [FOLDER] [NUMBER]`.

Pictures with masks, photographs, recordings, questions about pictures, and text; the same each
time.
"""

from __future__ import annotations

import json
import random
import sys
import wave
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle")
OVERTONES = {
    "flute": (1.0, 0.1),
    "organ": (1.0, 0.0, 0.6, 0.0, 0.4),
    "strings": (1.0, 0.8, 0.6, 0.5),
}
TONES = tuple(OVERTONES)
RATE_HZ = 16_000


def shape(rng: random.Random, kind: str, side: int) -> tuple[Image.Image, Image.Image]:
    """A grey picture with one shape, and its mask of 0 and the number of the shape."""
    picture = Image.new("L", (side, side), rng.randint(0, 80))
    mask = Image.new("L", (side, side), 0)
    size = rng.randint(side // 3, side // 2)
    x, y = rng.randint(1, side - size - 2), rng.randint(1, side - size - 2)
    corners = [(x, y + size), (x + size, y + size), (x + size // 2, y)]
    for image, ink in ((picture, rng.randint(150, 255)), (mask, 1 + SHAPES.index(kind))):
        pen = ImageDraw.Draw(image)
        if kind == "circle":
            pen.ellipse((x, y, x + size, y + size), fill=ink)
        elif kind == "square":
            pen.rectangle((x, y, x + size, y + size), fill=ink)
        else:
            pen.polygon(corners, fill=ink)
    noise = np.random.default_rng(rng.randrange(2**32)).normal(0, 20, (side, side))
    noisy = np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8)
    return Image.fromarray(noisy), mask


def segmentation(folder: Path, number: int, rng: random.Random) -> None:
    """`images/N.png` and `masks/N.png` of 32 x 32 pixels."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for index in range(number):
        picture, mask = shape(rng, SHAPES[index % 3], 32)
        picture.save(folder / "images" / f"{index:05d}.png")
        mask.save(folder / "masks" / f"{index:05d}.png")


def pictures(folder: Path, number: int, rng: random.Random) -> None:
    """`SHAPE/N.png` of 64 x 64 coloured pixels."""
    for index in range(number):
        kind = SHAPES[index % 3]
        (folder / kind).mkdir(parents=True, exist_ok=True)
        picture, _ = shape(rng, kind, 64)
        picture.convert("RGB").save(folder / kind / f"{index:05d}.png")


def photographs(folder: Path, number: int, rng: random.Random) -> None:
    """`SHAPE/N.jpg` of ImageNet's sizes: about 500 x 375 pixels and 110 KB, upright and wide."""
    noise = np.random.default_rng(rng.randrange(2**32))
    for index in range(number):
        kind = SHAPES[index % 3]
        (folder / kind).mkdir(parents=True, exist_ok=True)
        sides = [rng.randint(460, 540), rng.randint(330, 420)]
        width, height = sides if rng.random() < 0.75 else reversed(sides)
        coarse = Image.fromarray(noise.integers(0, 200, (6, 8, 3), dtype=np.uint8))
        picture = coarse.resize((width, height), Image.Resampling.BICUBIC)
        mask = shape(rng, kind, min(width, height))[1].point(lambda value: 255 * (value > 0))
        ink = tuple(rng.randint(0, 255) for _ in range(3))
        picture.paste(ink, (rng.randint(0, width - mask.width), 0), mask)
        pixels = np.asarray(picture) + noise.normal(0, 25, (height, width, 3)).astype(np.float32)
        photograph = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        photograph.save(folder / kind / f"{index:05d}.jpg", quality=94)


def tones(folder: Path, number: int, rng: random.Random) -> None:
    """`TONE/N.wav`, a quarter of a second each: tones of other overtones, with noise."""
    noise = np.random.default_rng(rng.randrange(2**32))
    time_s = np.arange(RATE_HZ // 4) / RATE_HZ
    for index in range(number):
        kind = index % 3
        strength = OVERTONES[TONES[kind]]
        pitch_hz = rng.uniform(200, 800)
        parts = [
            s * np.sin(2 * np.pi * pitch_hz * (k + 1) * time_s) for k, s in enumerate(strength)
        ]
        sound = np.sum(parts, 0) + noise.normal(0, 0.05, len(time_s))
        path = folder / TONES[kind] / f"{index:05d}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_HZ)
            file.writeframes((sound / np.abs(sound).max() * 30_000).astype("<i2").tobytes())


def questions(folder: Path, number: int, rng: random.Random) -> None:
    """`N.png` of 32 x 32 pixels and `qa.jsonl` with a question and its answer for each."""
    folder.mkdir(parents=True)
    with (folder / "qa.jsonl").open("w") as index:
        for place in range(number):
            kind, asked = SHAPES[place % 3], rng.choice(SHAPES)
            picture, _ = shape(rng, kind, 32)
            picture.save(folder / f"{place:05d}.png")
            question, answer = f"is there a {asked}", "yes" if asked == kind else "no"
            if rng.random() < 0.5:
                question, answer = "what is this", kind
            row = {"path": f"{place:05d}.png", "question": question, "label": answer}
            index.write(json.dumps(row) + "\n")


def text(folder: Path, number: int, rng: random.Random) -> None:
    """`N.npy`: 65 characters of sums such as `12+7=19;` as bytes."""
    folder.mkdir(parents=True)
    for index in range(number):
        line = ""
        while len(line) < 65:
            a, b = rng.randint(0, 99), rng.randint(0, 99)
            line += f"{a}+{b}={a + b};"
        np.save(folder / f"{index:05d}.npy", np.frombuffer(line[:65].encode(), np.uint8))


def main(folder: Path, number: int) -> None:
    """Make all of them, unless they are there."""
    for seed, make in enumerate((segmentation, pictures, tones, questions, text, photographs)):
        if not (folder / make.__name__).exists():
            make(folder / make.__name__, number, random.Random(seed))
    print(f"{number} samples each in {', '.join(sorted(each.name for each in folder.iterdir()))}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(Path(arguments[0] if arguments else "data"), int((arguments[1:] or ["600"])[0]))
