"""Libraries of linear algebra as the real ones report themselves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from headrace.recipe.difference import changes
from headrace.steps.history import facts_of_all
from headrace.training.machine_facts import cublas_version, machine_facts

CODE = "import json, headrace.training.machine_facts as m; print(json.dumps(m.machine_facts()))"


def facts(**env: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**os.environ, **env}, check=True, capture_output=True
    )
    return json.loads(done.stdout)


def test_libraries_have_version_kernel_and_threads():
    found = machine_facts()
    assert found["PyTorch"].split(", ")[-1].endswith(" threads")
    assert "BLAS_INFO=" in found["PyTorch"]
    assert "kernel" in found["openblas of numpy"]
    assert found.keys() >= {"CPU", "GPUs", "NumPy"}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="kernels of x86-64")
def test_another_kernel_and_other_threads_are_a_difference():
    here, there = facts(), facts(OPENBLAS_CORETYPE="Nehalem", OPENBLAS_NUM_THREADS="1")
    (change,) = [each for each in changes(here, there) if each.key == "openblas of numpy"]
    assert "1 threads" in change.after
    before, after = (re.search(r"kernel (\w+)", text)[1] for text in (change.before, change.after))
    assert before != after


def test_machines_that_differ_have_all_values():
    first, second = {"CPU": "a", "NumPy": "b"}, {"CPU": "c", "NumPy": "b"}
    assert facts_of_all([first, second, first]) == {"CPU": "a | c", "NumPy": "b"}
    assert facts_of_all([{}, {}]) == {}


def test_a_cublas_that_is_not_there_is_said():
    assert cublas_version("3") == "not found"
