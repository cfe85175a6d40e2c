"""Keys for many ranks that cannot work together are refused before anything runs."""

from __future__ import annotations

import pytest

from headrace.errors import RecipeError
from headrace.recipe.load import load_recipe


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["ddp.static_graph=true", "ddp.find_unused_parameters=true"], "static_graph finds unused"),
        (["ddp.powersgd.rank=2"], "powersgd goes with comm_hook: powersgd"),
        (["ddp.comm_hook=fp16", "ddp.local_sgd.period=4"], "without comm_hook: fp16"),
        (["ddp.comm_hook=powersgd", "ddp.powersgd.start=1"], "give an integer .≥ 2"),
        (["ddp.comm_hook=bf16", "accelerator=cpu"], "bf16 works between GPUs only"),
        (["sync_batchnorm=true", "accelerator=cpu"], "sync_batchnorm works between GPUs only"),
        (["strategy=ddp_spawn", "ddp.static_graph=true"], "ddp goes with strategy ddp"),
        (["strategy=fsdp", "ddp.comm_hook=fp16"], "ddp goes with strategy ddp, not with fsdp"),
        (["fsdp.wrap=[Block]"], "fsdp goes with strategy fsdp, not with ddp"),
        (["accelerator=auto", "strategy=fsdp", "sync_batchnorm=true"], "fsdp does not convert"),
        (
            ["sharded_checkpoints=true"],
            "sharded_checkpoints goes with strategy fsdp: with ddp each",
        ),
        (
            ["strategy=fsdp", "sharded_checkpoints=true", "async_checkpoints=true"],
            "leave out async_checkpoints",
        ),
        (["strategy=fsdp", "ema.decay=0.9"], "ema goes with strategy ddp"),
        (["ddp.local_sgd.period=4", "ema.decay=0.9"], "ema goes without ddp.local_sgd"),
        (["strategy=fsdp", "compile=true"], "compile goes with strategy ddp"),
        (["strategy=fsdp", "precision=16-mixed"], "knows no precision 16-mixed"),
    ],
)
def test_combinations_that_cannot_work(overrides, told):
    with pytest.raises(RecipeError, match=told):
        load_recipe("digits", [f"trainer.{each}" for each in overrides])


def test_a_recipe_for_gpus_is_not_refused():
    overrides = ["accelerator=auto", "sync_batchnorm=true", "ddp.comm_hook=bf16"]
    trainer = load_recipe("digits", [f"trainer.{each}" for each in overrides]).trainer
    assert trainer.ddp.comm_hook == "bf16"
    assert trainer.extra == {"sync_batchnorm": True}


def test_neighbours_in_tensor_parallel_share_samples():
    split = ["trainer.strategy=fsdp", "trainer.fsdp.tensor_parallel_size=2"]
    trainer = load_recipe("digits", split).trainer
    assert [trainer.data_rank(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert trainer.data_ranks(4) == 2
    with pytest.raises(RecipeError, match="by which 3 ranks cannot be divided"):
        trainer.data_ranks(3)
