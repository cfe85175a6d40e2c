"""The first screen says what holds: its site can be used, its figures are those of the pages."""

from __future__ import annotations

import re
from importlib.metadata import metadata

import yaml

from headrace.recipe.load import parse
from headrace.recipe.site import Site
from support.sources import ROOT

README = (ROOT / "README.md").read_text()
INSTALL = (ROOT / "docs" / "how-to" / "install.md").read_text()
EXPLANATIONS = ROOT / "docs" / "explanations"


def measured(row: str) -> str:
    """Result in a row of the README's table."""
    (found,) = re.findall(rf"^\| {row}.*? \| (.*?) \|", README, re.M)
    return found


def cells(page: str, row: str) -> list[str]:
    """Cells behind the first one of a row of a page."""
    (found,) = re.findall(rf"^\| {row} \|(.*)\|$", (EXPLANATIONS / page).read_text(), re.M)
    return [each.strip() for each in found.split("|")]


def test_twelve_lines_are_a_site_for_slurm():
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", README, re.M | re.S)
    assert len(text.splitlines()) == 12
    site = parse(Site, yaml.safe_load(text), "README.md")
    assert {role.backend for role in site.roles.values()} == {"slurm"}
    assert (site.roles["cpu"].kind, site.roles["gpu"].kind) == ("pool", "gang")


def test_figures_are_those_of_the_pages():
    page = (EXPLANATIONS / "reliability.md").read_text()
    ((killed, halted, wrong, hung),) = re.findall(
        r"^\| (\d+) \| (\d+) \| \d+ \| (\d+) \| (\d+) \|", page, re.M
    )
    num_runs = int(killed) + int(halted)
    assert (wrong, hung) == ("0", "0")
    assert f"in {num_runs} of {num_runs} runs" in measured("weights")
    rate, first_step = measured("training").split(",")[:2]
    assert cells("speed.md", "train, samples per second")[1] in rate
    assert cells("speed.md", "train, time to the first optimizer step")[1] in first_step
    rows = ("read, samples of 3,072 bytes", "read, 110,592 bytes", "read, 1,399,467 bytes")
    shares = sorted(float(cells("speed.md", row)[1]) for row in rows)
    assert f"{shares[0]} to {shares[-1]} of" in measured("reading")
    results = (ROOT / "docs" / "benchmarks" / "results.md").read_text()
    times = sorted(map(float, re.findall(r"^\d+-bytes,DataLoader,.*,([\d.]+)$", results, re.M)))
    assert f"{times[0]:g} to {times[-1]:g} times" in measured("reading")


def test_the_wheel_and_the_extras_are_those_of_the_project():
    known = metadata("headrace")
    wheel = f"headrace-{known['Version']}-py3-none-any.whl"
    assert set(re.findall(r"headrace-[\w.-]+\.whl", README + INSTALL)) == {wheel}
    table = INSTALL.partition("| extra | for |")[2]
    extras = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M)
              for name in re.findall(r"`(\w+)`", row)}  # fmt: skip
    assert len(extras) > 8
    assert extras <= set(known.get_all("Provides-Extra"))
