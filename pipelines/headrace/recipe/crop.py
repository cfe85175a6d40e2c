"""Random crops of images that stay encoded: their arguments, and where a recipe may name them."""

from __future__ import annotations

import math
from random import Random
from typing import Annotated

from pydantic import AfterValidator, Field

from headrace.errors import RecipeError
from headrace.recipe.base import Fraction, Name, Settings
from headrace.recipe.dataset import PackField
from headrace.recipe.load import parse
from headrace.recipe.recipe import CROP, Recipe
from headrace.recipe.targets import targets_of

_CENTRE = 224 / 256
"""Side of the central square, as a share of the shorter side: as ImageNet is evaluated."""

CROPS_FIRST = "Name it before all other sample_transforms, once a field, without data.dataset."


def _in_order(limits: tuple[float, float]) -> tuple[float, float]:
    if limits[0] > limits[1]:
        raise ValueError(f"{limits[0]:g} is more than {limits[1]:g}: the lower limit comes first")
    return limits


_Share = Annotated[float, Field(gt=0, le=1)]
_Ratio = Annotated[float, Field(ge=0.001, le=1000)]


class Crop(Settings):
    """Arguments of `headrace.data.transforms.RandomResizedCrop`."""

    size: Annotated[int, Field(ge=1, le=10_000)] = 224
    """Height and width of the result, pixels."""
    scale: Annotated[tuple[_Share, _Share], AfterValidator(_in_order)] = (0.08, 1.0)
    """Least and largest share of the image's area."""
    ratio: Annotated[tuple[_Ratio, _Ratio], AfterValidator(_in_order)] = (3 / 4, 4 / 3)
    """Least and largest width of the part, relative to its height."""
    flip: Fraction = 0.5
    """Share of the samples that are mirrored, left to right."""
    field: Name = "image"
    """Field of encoded images."""

    def box(self, random: Random | None, height: int, width: int) -> tuple[int, int, int, int]:
        """Return top, left, bottom and right of a part of an image; without `random` of its centre.

        It is drawn as by torchvision: after ten that do not fit, the largest of a valid ratio.
        """
        if random is None:
            down = across = max(round(min(height, width) * _CENTRE), 1)
        else:
            low, high = map(math.log, self.ratio)
            for _ in range(10):
                share = self.scale[0] + (self.scale[1] - self.scale[0]) * random.random()
                ratio = math.exp(low + (high - low) * random.random())
                down = round(math.sqrt(share * height * width / ratio))
                across = round(math.sqrt(share * height * width * ratio))
                if 0 < down <= height and 0 < across <= width:
                    top = int(random.random() * (height - down + 1))
                    left = int(random.random() * (width - across + 1))
                    return top, left, top + down, left + across
            down = max(min(height, round(width / self.ratio[0])), 1)
            across = max(min(width, round(height * self.ratio[1])), 1)
        top, left = (height - down) // 2, (width - across) // 2
        return top, left, top + down, left + across


def crops_of(recipe: Recipe) -> dict[str, Crop]:
    """Return the crops of samples by key; raise `RecipeError` if one is not valid there."""
    found: dict[str, Crop] = {}
    for key, target in targets_of(recipe).items():
        if target.target != CROP:
            continue
        crop = parse(Crop, target.model_extra or {}, key)
        where = f"{key} crops '{crop.field}' at decoding, but"
        is_first = key == f"data.sample_transforms[{len(found)}]" and recipe.data.dataset is None
        if not is_first or crop.field in [each.field for each in found.values()]:
            raise RecipeError(f"{where} comes later", CROPS_FIRST)
        keep = recipe.pack.fields.get(crop.field, PackField()).keep or recipe.pack.images
        if keep == "decode" and recipe.dataset_path is None:
            raise RecipeError(
                f"{where} it is packed as pixels",
                f"Set pack.fields.{crop.field}.keep to 'encoded'.",
            )
        found[key] = crop
    return found
