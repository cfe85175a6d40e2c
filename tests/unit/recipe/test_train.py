"""Keys for many ranks that cannot work together are refused before anything runs."""

from __future__ import annotations

from typing import get_args

import pytest

from headrace.errors import RecipeError
from headrace.recipe.lightning_arguments import STRATEGIES, Precision
from headrace.recipe.load import load_recipe


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["ddp.static_graph=true", "ddp.find_unused_parameters=true"], "static_graph finds unused"),
        (["ddp.powersgd.rank=2"], "powersgd goes with comm_hook: powersgd"),
        (["ddp.comm_hook=fp16", "ddp.local_sgd.period=4"], "leave out comm_hook: fp16"),
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
        (["ddp.local_sgd.period=4", "ema.decay=0.9"], "ema excludes ddp.local_sgd"),
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


_NONE = ("min_epochs", "min_steps", "log_every_n_steps", "reload_dataloaders_every_n_epochs")
_SWITCHES = (
    "benchmark", "detect_anomaly", "inference_mode", "sync_batchnorm", "enable_progress_bar",
    "enable_model_summary", "enable_autolog_hparams",
)  # fmt: skip


@pytest.mark.parametrize(
    "override",
    [
        *(f"limit_{kind}_batches={each}" for kind in ("val", "test", "predict")
          for each in ("-1", "1.5", "-0.5", "true", "nan", "few", "[1]")),
        *(f"val_check_interval={each}" for each in ("0", "-1", "1.5", "true", "'1:2'")),
        *(f"{name}={each}" for name in _NONE for each in ("-1", "0.5", "true", "many", "1.0")),
        *(f"{name}={each}" for name in _SWITCHES for each in ("0", "1", "maybe", "'true'")),
        "num_sanity_val_steps=-2", "gradient_clip_algorithm=nope", "profiler=nope", "profiler=7",
        "default_root_dir=7", "strategy=nope", "strategy=ddp2", "precision=12", "precision=33-true",
        "accelerator=tpu", "max_epochs=-5", "gradient_clip_val=-1", "accumulate_grad_batches=0",
        "val_every_epochs=0", "check_val_every_n_epoch=0", "extra.strategy=nope", "extra=null",
    ],
)  # fmt: skip
def test_a_value_that_lightning_refuses_is_refused_at_once(override):
    with pytest.raises(RecipeError) as caught:
        load_recipe("digits", [f"trainer.{override}"])
    name = override.partition("=")[0].removeprefix("extra.")
    assert f"{name}" in caught.value.what
    assert "give" in caught.value.what or "nknown" in caught.value.what


@pytest.mark.parametrize(
    "override",
    [
        "limit_val_batches=0", "limit_test_batches=1.0", "limit_predict_batches=3",
        "val_check_interval=0.25", "val_check_interval=10", "val_check_interval='00:01:00:00'",
        "val_check_interval={minutes: 5}", "min_epochs=0", "log_every_n_steps=0",
        "num_sanity_val_steps=-1", "gradient_clip_algorithm=value", "profiler=simple",
        "benchmark=true", "inference_mode=false", "strategy=ddp_fork", "precision=bf16",
        "strategy=deepspeed_stage_2", "limit_val_batches=null", "default_root_dir=/tmp/x",
    ],
)  # fmt: skip
def test_a_value_that_lightning_takes_is_passed_on(override):
    load_recipe("digits", [f"trainer.{override}"])


def test_a_trainer_of_ones_own_may_take_other_values():
    own = ["trainer._target_=mine.Trainer", "trainer.strategy=nope", "trainer.profiler=mine"]
    assert load_recipe("digits", own).trainer.strategy == "nope"


def test_names_are_those_of_lightning():
    from lightning.fabric.connector import _PRECISION_INPUT_STR, _PRECISION_INPUT_STR_ALIAS
    from lightning.pytorch.strategies import StrategyRegistry

    known = {each for each in StrategyRegistry.available_strategies() if "xla" not in each}
    assert {*STRATEGIES} == known - {"single_tpu"} | {"auto"}
    names = get_args(_PRECISION_INPUT_STR) + get_args(_PRECISION_INPUT_STR_ALIAS)
    assert {*get_args(get_args(Precision)[0])} == {*names}
