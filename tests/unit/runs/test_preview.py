"""What a run would ask of a site, in words."""

from __future__ import annotations

import pytest

from headrace.execution.execute import previews
from headrace.recipe.load import load_recipe, load_site


def test_the_time_limit_of_a_job_is_explained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_CONF", "/somewhere/slurm.conf")
    found = {each.role: each for each in previews(load_recipe("digits"), load_site("slurm-dev"))}
    assert "#SBATCH --time=01:00:00" in found["gpu"].script
    assert found["gpu"].time.startswith("time limit 1:00:00, the `lifetime` of the role; the lease")
    assert "goes on in another job" in found["gpu"].time
    assert "goes on" not in found["cpu"].time


def test_a_lease_of_this_machine_has_no_time_limit_but_its_own():
    found = previews(load_recipe("digits"), load_site("laptop"))
    assert {each.script for each in found} == {""}
    assert all(each.time.endswith("the `lifetime` of the role") for each in found)
