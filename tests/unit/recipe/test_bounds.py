"""Absurd numbers start no processes and take no memory: bounds by role, by memory, by kind."""

from __future__ import annotations

import os

import pytest

from headrace.errors import RecipeError
from headrace.recipe.fit import opened
from headrace.recipe.gang_size import check_nodes
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.site import Role
from headrace.runs.resolve import resolve
from headrace.suites import points

AUTO = "trainer.accelerator=auto"
MINE = 8 * (os.cpu_count() or 1)
SLURM = {"backend": "slurm", "kind": "gang"}
GPUS = {**SLURM, "ranks_per_node": 2, "batch": {"gpus_per_node": 4}}
CPUS = {**SLURM, "ranks_per_node": 4, "threads_per_rank": 2}


@pytest.mark.parametrize(
    ("role", "most", "elsewhere"),
    [
        ({"kind": "gang", "ranks_per_node": 2}, max(MINE, 2), 2),
        ({"kind": "gang", "ranks_per_node": MINE + 1}, MINE + 1, MINE + 1),
        ({"kind": "gang", "ranks_per_node": 2, "ranks_per_node_max": 3}, 3, 3),
        ({"kind": "gang", "ranks_per_node": 2, "ranks_per_node_max": 1}, 2, 2),
        (GPUS, 4, 2),
        (CPUS, 64, 4),
        ({**CPUS, "batch": {"exclusive": True}}, 10**6, 4),
    ],
)
def test_ranks_of_a_node(role, most, elsewhere):
    """In a terminal as many as the node has room for; from Airflow as many as the role says."""
    site = load_site("laptop").model_copy(update={"roles": {"gpu": Role.model_validate(role)}})
    for door, bound in ((True, most), (False, elsewhere)):
        there = opened(site, is_from_terminal=door).roles["gpu"]
        check_nodes(load_recipe("digits", [f"train.ranks_per_node={bound}", AUTO]), there)
        if bound < 10**6:
            with pytest.raises(RecipeError, match=f"has only {bound}"):
                check_nodes(
                    load_recipe("digits", [f"train.ranks_per_node={bound + 1}", AUTO]), there
                )


def test_ranks_on_cpus_of_a_node_with_gpus():
    many = ["train.ranks_per_node=16", "trainer.accelerator=cpu"]
    check_nodes(load_recipe("digits", many), Role.model_validate(GPUS))


@pytest.mark.parametrize(
    ("override", "kind"),
    [
        ("pack.fields={image: {resize: [100000, 100000]}}", "pack"),
        ("pack.fields={image: {resize: [100000, 100000]}}", "train"),
        ("train.ranks_per_node=32", "train"),
        ("train.nodes=2", "train"),
    ],
)
def test_a_run_from_airflow_is_refused_before_anything_starts(headrace_home, override, kind):
    recipe = load_recipe("digits", [override])
    with pytest.raises(RecipeError, match=override.partition("=")[0]):
        resolve(recipe, load_site("laptop"), kind, is_from_terminal=False)


def test_a_size_that_fits_is_taken(headrace_home):
    recipe = load_recipe("digits", ["pack.fields={image: {resize: [16, 16]}}"])
    resolve(recipe, load_site("laptop"), "pack", is_from_terminal=True)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["suite.grid={seed: [1, 2]}", f"suite.trials_per_node={MINE + 1}"], "trials_per_node"),
        (["suite.grid={train.ranks_per_node: [1, 32]}"], "train.ranks_per_node is 32"),
    ],
)
def test_trials_from_airflow(headrace_home, overrides, words):
    recipe = load_recipe("digits", overrides)
    recipe, site = resolve(recipe, load_site("laptop"), "suite", is_from_terminal=False)
    source = {**recipe.model_dump(mode="json", by_alias=True, exclude={"suite"})}
    with pytest.raises(RecipeError, match=words):
        points.checked(recipe, source, site)


@pytest.mark.parametrize(
    "override",
    [
        "data.prefetch=257", "suite.trials_per_gpu=129", "suite.trials_per_node=1025",
        "train.nodes=1000001", "train.ranks_per_node=1000001", "suite.max_running=1000001",
        "suite.seeds=100001", "+suite.search={space: {seed: 'range(0, 9)'}, trials: 100001}",
        "suite.retries=10001", "train.max_restarts=10001", "dataset.folds=1000001",
        "trainer.keep_checkpoints=1000001", "evaluate.batch_size=1000000000001",
        "data.global_batch_size=1000000000001", "retry.max_failures=1000000000001",
    ],
)  # fmt: skip
def test_numbers_that_no_machine_has(override):
    with pytest.raises(RecipeError, match=r"(≤|less than or equal|to)"):
        load_recipe("digits", [override])
