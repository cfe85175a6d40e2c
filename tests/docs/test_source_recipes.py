"""The recipes on the page about raw samples are recipes."""

import re
from pathlib import Path

import yaml

from headrace.recipe.load import parse
from headrace.recipe.recipe import Recipe

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "raw-samples.md"


def test_all_recipes_of_the_page_can_be_read():
    found = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    names = set()
    for text in found:
        whole = {"name": "x", "model": {"_target_": "torch.nn.Identity"}, **yaml.safe_load(text)}
        names.add(parse(Recipe, whole, str(PAGE)).dataset.name)
    assert len(names) == len(found) == 8
