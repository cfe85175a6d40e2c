"""A key takes values of its own type only, and keys that exclude each other are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from headrace.errors import RecipeError, SiteError
from headrace.recipe.base import Settings
from headrace.recipe.lightning_arguments import STRATEGIES, Precision
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site

WRONG = {
    int: (True, False, "1", 1.0, 1.5, "true"),
    float: (True, False, "1", "1.5", "nan"),
    bool: (0, 1, 1.0, "true", "yes", "on", "1"),
    str: (0, 1, 1.5, True),
}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _models(field.annotation)
    for each in get_args(annotation):
        yield from _models(each)


MODELS = sorted({*_models(Recipe), *_models(Site)}, key=lambda each: each.__name__)


def _scalars() -> Iterator[tuple[type[BaseModel], str, type]]:
    for model in MODELS:
        for name, field in model.model_fields.items():
            kinds = {field.annotation, *get_args(field.annotation)} - {type(None)}
            if len(kinds) == 1 and (kind := kinds.pop()) in WRONG:
                yield model, field.alias or name, kind


SCALARS = [*_scalars()]


def test_all_models_of_recipes_and_sites_are_strict():
    names = {each.__name__ for each in MODELS}
    assert {"Recipe", "TrainerSpec", "Site", "Role", "Batch", "NodePrice", "SearchSpec"} <= names
    assert len(SCALARS) > 80


@pytest.mark.parametrize(("model", "key", "kind"), SCALARS)
def test_a_value_of_another_type_is_refused(model, key, kind):
    given = {str: (*WRONG[str],)}.get(kind, WRONG[kind])
    if key in DURATIONS:
        given = tuple(each for each in given if not isinstance(each, str))
    for value in given:
        with pytest.raises(ValidationError) as caught:
            model.model_validate({key: value})
        assert key in {each["loc"][0] for each in caught.value.errors()}, value


DURATIONS = {
    name
    for model in MODELS
    for name, field in model.model_fields.items()
    if any("_parse_duration" in repr(each) for each in field.metadata)
}


def test_precision_may_be_a_number_as_for_lightning():
    assert load_recipe("digits", ["trainer.precision=32"]).trainer.precision == "32"


QUOTED = "Write {} without quotes; of a variable: ${{oc.decode:${{oc.env:NAME}}}}."


@pytest.mark.parametrize(
    ("override", "words", "hint"),
    [
        ("seed=true", "seed: give an integer .*got true", ""),
        ("seed='1'", "seed: give an integer .*got '1'", QUOTED.format(1)),
        ("seed=1.0", "seed: give an integer .*got 1.0", "Write 1."),
        ("seed='1.5'", "got '1.5'", ""),
        ("seed=1e12", "got 1000000000000.0", ""),
        ("seed='007'", "got '007'", ""),
        ("trainer.max_steps=1e4", "got 10000.0", "Write 10000."),
        ("trainer.max_steps='1e4'", "got '1e4'", QUOTED.format(10000)),
        ("trainer.deterministic=1", "trainer.deterministic: give true or false .got 1", ""),
        ("trainer.deterministic=yes", "give true or false .got 'yes'", ""),
        ("trainer.gradient_clip_val=true", "give a number .*got true", ""),
        ("trainer.precision=8", "give one of '64-true'", ""),
        ("trainer.precision=true", "give one of '64-true'", ""),
        ("train.nodes=2.0", "train.nodes: give an integer .*got 2.0", "Write 2."),
        ("train.hang_timeout=true", "got true", ""),
        ("suite={grid: {seed: [1]}, seeds: 3.0}", "suite.seeds: give an integer", "Write 3."),
        ("evaluate.checkpoint='500'", "got '500'", QUOTED.format(500)),
        ("pack.shard_bytes=1e6", "got 1000000.0", "Write 1000000."),
        ("pack.shard_bytes=true", "got true", ""),
        ("pack.shard_bytes=1.5", "got 1.5", ""),
        ("dataset.splits.train='0.8'", "got '0.8'", QUOTED.format(0.8)),
        ("data.shuffle='true'", "got 'true'", QUOTED.format("true")),
        ("data.shuffle='3'", "give true or false .got '3'", ""),
        ("data.pad='1'", "data.pad: give a number or null .got '1'", QUOTED.format(1)),
        ("data.pad='true'", "got 'true'", ""),
    ],
)
def test_the_message_names_key_type_value_and_the_way_out(override, words, hint):
    with pytest.raises(RecipeError, match=words) as caught:
        load_recipe("digits", [override])
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("+trainer.min_epochs=1.0", "min_epochs is 1.0: give an integer .*; write 1$"),
        (
            "+trainer.benchmark='true'",
            "benchmark is 'true': give true or false or null; write true",
        ),
        ("+trainer.min_epochs=soon", "min_epochs is 'soon': give an integer .* or null$"),
        ("+trainer.profiler={_target_: mine.Profiler}", "profiler is .*: give one of 'simple'"),
        (
            "+trainer.max_time={_target_: datetime.timedelta, hours: 1}",
            "max_time is .*: give a pos",
        ),
    ],
)
def test_an_argument_of_lightning_has_the_way_out(override, words):
    with pytest.raises(RecipeError, match=words):
        load_recipe("digits", [override])


@pytest.mark.parametrize("value", ["true", "1.0", "'2'"])
def test_a_site_is_as_strict(tmp_path, value):
    file = tmp_path / "mine.yaml"
    file.write_text(f"folder: {tmp_path}\nroles: {{cpu: {{backend: local, nodes: {value}}}}}\n")
    with pytest.raises(SiteError, match=r"roles\.cpu.nodes: give an integer"):
        load_site(str(file))


def test_a_whole_number_is_a_fraction_and_units_are_text():
    recipe = load_recipe(
        "digits", ["trainer.gradient_clip_val=1", "train.timeout=90s", "pack.shard_bytes=1MiB"]
    )
    assert (recipe.trainer.gradient_clip_val, recipe.train.timeout) == (1.0, 90.0)
    assert recipe.pack.shard_bytes == 2**20


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
