"""What owned machines cost, and the worked example of the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from headrace.errors import UserError
from headrace_foresight.ownership import Cluster, costs_per_year, usd_per_hour
from support.command_line import headrace

_PAGE = Path(__file__).parents[3] / "docs" / "explanations" / "costs.md"


def _example() -> tuple[str, str]:
    own = _PAGE.read_text().partition("## A cluster of one's own")[2]
    found = re.search(r"```yaml\n(.*?)```\n\n```text\n(.*?)```", own, re.DOTALL)
    return found[1], found[2]


def test_the_worked_example_is_what_the_command_tells(tmp_path: Path):
    given, told = _example()
    file = tmp_path / "cluster.yaml"
    file.write_text(given)
    ended = headrace("ownership", str(file))
    assert (ended.exit_code, ended.stdout) == (0, told)


def test_the_worked_example_holds_when_it_is_reckoned_by_hand():
    given = yaml.safe_load(_example()[0])["cluster"]
    cluster = Cluster.model_validate(given)
    payment, owed = costs_per_year(cluster)["purchase"], 1_600_000.0
    for _ in range(5):  # as a bank would: interest on what is owed, less the payment
        owed = owed * 1.04 - payment
    assert owed == pytest.approx(160_000.0)  # what the resale pays
    energy = 8 * 6.5 * 1.3 * 24 * 365 * 0.15
    year = payment + energy + 30_000 + 0.05 * 1_600_000 + 60_000
    assert usd_per_hour(cluster) == pytest.approx(year / (64 * 24 * 365 * 0.7))


def test_without_interest_or_gpus_the_sum_is_plain():
    plain = Cluster(
        purchase_usd=8760.0, lifetime_years=2, nodes=1, watts_per_node=1000.0, pue=1.0,
        usd_per_kwh=0.1, utilisation=0.5,
    )  # fmt: skip
    assert usd_per_hour(plain) == pytest.approx((4380 + 876) / 4380)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cluster: {nodes: 0}", "the key 'cluster.purchase_usd' is missing"),
        ("[]", "the file: give a mapping with keys of cluster, project"),
        ("a: [", "cannot be read"),
        ("cluster: {utilisation: 1.5, price: 3}", "utilisation: give a number .> 0, ≤ 1. .got 1.5"),
        ("cluster: {utilisation: 1, price: 3}", "unknown key 'cluster.price'"),
    ],
)
def test_a_file_that_cannot_be_meant_is_told(tmp_path: Path, content: str, message: str):
    file = tmp_path / "cluster.yaml"
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        headrace("ownership", str(file))
