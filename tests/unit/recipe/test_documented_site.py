"""The site file that the page on Slurm explains line by line can be used."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from headrace.recipe.batch import Batch
from headrace.recipe.load import parse
from headrace.recipe.site import Site

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "run-on-slurm.md"


def test_the_examples_of_the_page():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    site = next(each for each in blocks if each.startswith("name: my-cluster"))
    batch = next(each for each in blocks if "container:" in each)
    shown = parse(Site, yaml.safe_load(site), str(PAGE))
    assert shown.roles["gpu"].batch.modules == ("cuda/12.4",)
    container = Batch.model_validate(yaml.safe_load(batch)["batch"]).container
    assert container.runtime == "apptainer"
