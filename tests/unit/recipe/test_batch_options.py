"""Options of submit commands that headrace sets itself, and keys that a backend lacks."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.recipe.site import Role


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"options": ["--requeue"]}, "`batch.options` must not hold '--requeue': headrace retries"),
        ({"options": ["--array=1-4"]}, "a lease is one job"),
        ({"options": ["--job-name=mine"]}, "headrace finds its jobs by their names"),
        ({"options": ["-Jmine"]}, "headrace finds its jobs by their names"),
        ({"options": ["--output", "x"]}, "headrace writes the log into the lease's folder"),
        ({"options": ["-N 4"]}, "write `nodes` of the role"),
        ({"options": ["mine"]}, "'mine' in `batch.options` is malformed; write it as"),
        ({"srun_options": ["--export=NONE"]}, "the nodes need the environment of the job"),
        ({"partition": "a", "options": ["-p b"]}, "'-p b': `batch.partition` says it already"),
        (
            {"gpus_per_node": 2, "options": ["--gres=gpu:4"]},
            "`batch.gpus_per_node` says it already",
        ),
        ({"gpu_type": "a100"}, "write `gpus_per_node`, too"),
    ],
)
def test_options_that_contradict_headrace_are_refused(batch: dict[str, Any], told: str):
    """pains 32: no second layer of requeueing behind headrace's back."""
    with pytest.raises(ValidationError) as caught:
        Role(backend="slurm", kind="gang", batch=batch)
    assert told in str(caught.value)


def test_other_options_are_passed_on():
    options = ["--mail-type=FAIL", "-C ib", "--gres=tmpfs:100G"]
    role = Role(backend="slurm", kind="gang", batch={"partition": "a", "options": options})
    assert role.batch.options == tuple(options)
