"""Kinds of objects that targets make, and at which keys of a recipe.

Of PyTorch, TorchMetrics and Lightning a target is allowed by what it is: a class, defined where its
kind lives, at a key where that kind belongs. Names alone are no fence: these packages hold
functions that call whatever they are told to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import TargetError, nearest
from headrace.recipe.base import Target
from headrace.recipe.recipe import Recipe

FRAMEWORKS = ("torch", "torchmetrics", "lightning", "pytorch_lightning", "lightning_fabric")
"""Packages of which a site allows single names only."""

NETWORK_LOGGERS = tuple(
    f"lightning.pytorch.loggers.{name}"
    for name in ("CometLogger", "LitLogger", "MLFlowLogger", "NeptuneLogger", "WandbLogger")
)
"""Loggers that send what they are given to a server, which their arguments may name."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What an object is."""

    name: str
    """For messages, with its article."""
    base: str
    """Class that it derives from."""
    names: str
    """Package in which classes of this kind are named."""
    homes: tuple[str, ...]
    """Modules and packages that define those which a recipe may name."""

    @property
    def class_name(self) -> str:
        """The base class without its module."""
        return self.base.rpartition(".")[2]


MODULE = Kind(
    name="a module of torch.nn", base="torch.nn.Module", names="torch.nn", homes=("torch.nn",)
)
OPTIMIZER = Kind(
    name="an optimizer of torch.optim",
    base="torch.optim.Optimizer",
    names="torch.optim",
    homes=("torch.optim",),
)
SCHEDULER = Kind(
    name="a scheduler of torch.optim.lr_scheduler",
    base="torch.optim.lr_scheduler.LRScheduler",
    names="torch.optim",
    homes=("torch.optim",),
)
METRIC = Kind(
    name="a metric of torchmetrics that needs no model or file",
    base="torchmetrics.Metric",
    names="torchmetrics",
    homes=tuple(
        f"torchmetrics.{part}"
        for part in (
            *("aggregation", "classification", "clustering", "collections", "nominal"),
            *("regression", "retrieval", "segmentation", "wrappers"),
        )
    ),
)
MODEL = Kind(
    name="a LightningModule of yours", base="lightning.pytorch.LightningModule", names="", homes=()
)
TRAINER = Kind(
    name="lightning.pytorch.Trainer",
    base="lightning.pytorch.Trainer",
    names="lightning.pytorch",
    homes=("lightning.pytorch.trainer",),
)
CALLBACK = Kind(
    name="a callback of lightning.pytorch.callbacks",
    base="lightning.pytorch.callbacks.Callback",
    names="lightning.pytorch.callbacks",
    homes=("lightning.pytorch.callbacks",),
)
LOGGER = Kind(
    name="a logger of lightning.pytorch.loggers that writes files",
    base="lightning.pytorch.loggers.Logger",
    names="lightning.pytorch.loggers",
    homes=("lightning.pytorch.loggers.csv_logs", "lightning.pytorch.loggers.tensorboard"),
)

_MADE = {
    "model": MODEL,
    "trainer": TRAINER,
    "trainer.callbacks": CALLBACK,
    "trainer.loggers": LOGGER,
}
"""What a target at a key makes, whoever wrote it."""

_AT: dict[str, tuple[Kind, ...]] = {
    **{key: (kind,) for key, kind in _MADE.items()},
    **dict.fromkeys(("data.sample_transforms", "data.transforms", "data.augment"), (MODULE,)),
    "dataset.reader": (),
}
"""What of the frameworks may stand at a key."""

_INSIDE = (MODULE, OPTIMIZER, SCHEDULER, METRIC)
"""What of them may stand further inside."""

SPECIAL_KEYS = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")
"""Keys of a target that are no arguments, as in Hydra."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One `_target_` of a recipe."""

    key: str
    """Where it stands, as in `model.optimizer`."""
    name: str
    """Its dotted name."""
    config: Mapping[str, object]
    """It and its arguments."""
    is_whole: bool
    """Whether the arguments are all it gets."""

    @property
    def given(self) -> tuple[str, ...]:
        """Names of its arguments."""
        return tuple(name for name in self.config if name not in SPECIAL_KEYS)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What may stand there of the frameworks."""
        return _AT.get(_place(self.key), _INSIDE)


def made_at(key: str) -> Kind | None:
    """What a target at a key makes, whoever wrote it; None where the user's code knows best."""
    return _MADE.get(_place(key))


def targets_of(recipe: Recipe) -> dict[str, Target]:
    """All targets of a recipe by key, without those inside them."""
    data, trainer = recipe.data, recipe.trainer
    lists: dict[str, Sequence[Target]] = {
        "data.sample_transforms": data.sample_transforms,
        "data.transforms": data.transforms,
        "data.augment": data.augment,
        "trainer.callbacks": trainer.callbacks,
        "trainer.loggers": trainer.loggers,
    }
    found = {f"{key}[{i}]": one for key, many in lists.items() for i, one in enumerate(many)}
    single = {"dataset.reader": recipe.dataset.reader, "model": recipe.model}
    found |= {key: one for key, one in single.items() if one is not None}
    return {**found, "trainer": Target.model_validate({"_target_": trainer.target})}


def uses(key: str, config: object, *, is_whole: bool = True) -> Iterator[Use]:
    """Every `_target_` in nested mappings and lists, the inner ones first.

    Args:
        key: Where the configuration stands in the recipe.
        config: Plain values.
        is_whole: Whether targets get no arguments besides those.

    Raises:
        TargetError: A key that only targets have is unknown or of the wrong type.
    """
    if isinstance(config, Mapping):
        _check_words(key, config)
        inner_whole = is_whole and config.get("_recursive_", True) is True
        for name, value in config.items():
            yield from uses(f"{key}.{name}", value, is_whole=inner_whole)
        if "_target_" in config:
            is_all = not {"_args_", "_partial_"} & config.keys()
            name = str(config["_target_"])
            yield Use(key=key, name=name, config=config, is_whole=is_whole and is_all)
    elif isinstance(config, list | tuple):
        for index, value in enumerate(config):
            yield from uses(f"{key}[{index}]", value, is_whole=is_whole)


def wrong_kind(key: str, what: str, kind: Kind) -> TargetError:
    """The error for something that does not belong where it stands."""
    return TargetError(f"'{key}' {what}, not a {kind.class_name}", f"Derive it from {kind.base}.")


def is_under(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a dotted name is one of the prefixes or lies below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def is_listed(name: str, listed: Sequence[str]) -> bool:
    """Whether a site lists a name, or a package of it that is none of the frameworks."""
    whole = (each for each in listed if each.partition(".")[0] not in FRAMEWORKS)
    return name in listed or is_under(name, whole)


def _place(key: str) -> str:
    return re.sub(r"\[\d+\]$", "", key)


def _check_words(key: str, config: Mapping[str, object]) -> None:
    for name, value in config.items():
        if not isinstance(name, str):
            raise TargetError(f"{key} has the key {name!r}, which is no name of an argument")
        if re.fullmatch(r"_\w+_", name) is None:
            continue
        if name not in SPECIAL_KEYS:
            raise TargetError(f"{key} has the unknown key '{name}'", nearest(name, SPECIAL_KEYS))
        if "_target_" not in config:
            raise TargetError(f"{key} has '{name}' but no '_target_'", "Name one, or leave it out.")
        _check_word(f"{key}.{name}", name, value)


def _check_word(key: str, name: str, value: object) -> None:
    wanted, valid = _VALID.get(name, (bool, "true or false"))
    if not isinstance(value, wanted) or (name == "_convert_" and value != "all"):
        raise TargetError(f"{key} is {value!r}", f"Valid: {valid}.")
    parts = str(value).split(".") if name == "_target_" else ()
    if not all(part.isidentifier() and not part.startswith("_") for part in parts):
        raise TargetError(f"{key} is '{value}', which is no dotted name of public names")


_VALID: dict[str, tuple[type | tuple[type, ...], str]] = {
    "_target_": (str, "a dotted name"),
    "_args_": ((list, tuple), "a list"),
    "_convert_": (str, "'all'"),
}
