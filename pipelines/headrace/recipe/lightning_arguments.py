"""Arguments of Lightning's Trainer: which ones headrace sets, and what values the others take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, create_model

from headrace.errors import shortened
from headrace.recipe.base import Count, CountFrom0, Fraction, Settings

OF_LIGHTNING = {
    **{name: f"write trainer.{name}" for name in (
        "max_epochs", "max_steps", "precision", "accelerator", "gradient_clip_val",
        "accumulate_grad_batches", "deterministic")},
    "check_val_every_n_epoch": "write trainer.val_every_epochs",
    "devices": "write train.ranks_per_node",
    "num_nodes": "write train.nodes",
    "callbacks": "write trainer.callbacks",
    "logger": "write trainer.loggers",
    "use_distributed_sampler": "leave it out: headrace shares the samples out itself",
}  # fmt: skip
"""Arguments of Lightning's Trainer that headrace sets, and what to write instead."""

_NO_TRAINING = {
    "barebones": "makes no checkpoints",
    "enable_checkpointing": "makes no checkpoints",
    "fast_dev_run": "tries some batches, without checkpoints",
    "overfit_batches": "trains and validates on some batches of the training split",
}
"""Arguments that end or replace the recipe's training, and how; their defaults may be written."""

Precision = Annotated[
    Literal[
        "64-true", "32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed",
        "transformer-engine", "transformer-engine-float16", "64", "32", "16", "bf16",
    ],
    BeforeValidator(lambda bits: str(bits) if type(bits) is int else bits),
]  # fmt: skip
"""Precision by Lightning's names; 16, 32 and 64 may be numbers, as for Lightning."""

STRATEGIES = (
    "auto", "fsdp", "fsdp_cpu_offload", "single_device", "deepspeed", "deepspeed_stage_1",
    "deepspeed_stage_2", "deepspeed_stage_2_offload", "deepspeed_stage_3",
    "deepspeed_stage_3_offload", "deepspeed_stage_3_offload_nvme",
    *(f"ddp{start}{unused}" for start in ("", "_spawn", "_fork", "_notebook")
      for unused in ("", "_find_unused_parameters_false", "_find_unused_parameters_true")),
)  # fmt: skip
"""Names of Lightning's strategies for CPUs and GPUs."""


def _check_time(time: Any) -> Any:
    """Refuse a time that Lightning cannot read, or that is not positive."""
    length = time
    if isinstance(time, str) and re.fullmatch(r"\d{1,9}(:\d\d){3}", time.strip()):
        units = ("days", "hours", "minutes", "seconds")
        length = dict(zip(units, map(int, time.split(":")), strict=True))
    try:
        is_positive = timedelta(**length) > timedelta()
    except (TypeError, ValueError, OverflowError):
        is_positive = False
    if not is_positive:
        raise ValueError("not a positive time")
    return time


_Time = Annotated[
    Any,
    AfterValidator(_check_time),
    Field(description="a positive time as '00:12:00:00' (days, hours, minutes, seconds) in quotes, "
                      "or {hours: 12}"),
]  # fmt: skip
_Share = Annotated[float, Field(gt=0, le=1)]

_TYPES: Mapping[str, Any] = {
    "limit_train_batches": Count | _Share | None,
    "limit_val_batches": CountFrom0 | Fraction | None,
    "limit_test_batches": CountFrom0 | Fraction | None,
    "limit_predict_batches": CountFrom0 | Fraction | None,
    "val_check_interval": Count | _Share | _Time | None,
    "max_time": _Time | None,
    "num_sanity_val_steps": Annotated[int, Field(ge=-1)] | None,
    "reload_dataloaders_every_n_epochs": CountFrom0,
    "gradient_clip_algorithm": Literal["norm", "value"] | None,
    "profiler": Literal["simple", "advanced", "pytorch", "xla"] | None,
    **dict.fromkeys(("min_epochs", "min_steps", "log_every_n_steps"), CountFrom0 | None),
    **dict.fromkeys(("benchmark", "detect_anomaly", "inference_mode", "sync_batchnorm",
        "enable_autolog_hparams", "enable_progress_bar", "enable_model_summary"), bool | None),
    **dict.fromkeys(("default_root_dir", "model_registry"), str | None),
    **dict.fromkeys(("barebones", "fast_dev_run"), Literal[False] | None),
    "enable_checkpointing": Literal[True] | None,
    "overfit_batches": Annotated[float, Field(ge=0, le=0)] | None,
}  # fmt: skip
_FIELDS: Any = {name: (kind, None) for name, kind in _TYPES.items()}
_Arguments = create_model("_Arguments", __base__=Settings, **_FIELDS)


def is_lightnings(target: object) -> bool:
    """Whether a Trainer is Lightning's own class; others may take other values."""
    return str(target).startswith(("lightning.", "pytorch_lightning."))


def check_arguments(given: Mapping[str, object]) -> None:
    """Raise ValueError for the first value that the Trainer refuses or that makes no training."""
    for name in given.keys() & _TYPES.keys():
        try:
            _Arguments.model_validate({name: given[name]})
        except ValidationError:
            if name in _NO_TRAINING:
                raise ValueError(f"{name} {_NO_TRAINING[name]}: leave it out") from None
            from headrace.recipe.yaml_types import Expected  # it reads the models of sites

            expected = Expected(_Arguments, (name,))
            instead = (meant := expected.meant(given[name])) and f"; write {meant}"
            raise ValueError(
                f"{name} is {shortened(repr(given[name]))}: give {expected.words}{instead}"
            ) from None
