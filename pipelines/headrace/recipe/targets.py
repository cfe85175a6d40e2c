"""Which `_target_` may stand where, and which a site allows, as far as names and paths can tell.

Of PyTorch, TorchMetrics and Lightning a target is allowed by what it is: a class, defined where its
kind lives, at a key where that kind belongs. Names alone are no fence: these packages hold
functions that call any function by its name. What a name resolves to is checked again where it is
imported, in `headrace.data.instantiate`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import TargetError, nearest
from headrace.recipe.base import Target
from headrace.recipe.python_source import hidden
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site

FRAMEWORKS = (
    "torch",
    "torchmetrics",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "optuna",
)
"""Packages that a site cannot allow as a whole, only name by name."""


class TargetKind(NamedTuple):
    """A kind of object."""

    name: str
    """For messages, with its article."""
    base: str
    """Its base class."""
    names: str
    """Package of the names of classes of this kind."""
    homes: tuple[str, ...]
    """Modules and packages that define the classes which a recipe may name."""

    @property
    def class_name(self) -> str:
        """The base class without its module."""
        return self.base.rpartition(".")[2]


_METRICS = (
    "aggregation", "audio.sdr", "audio.snr", "classification", "clustering", "collections",
    "detection", "image.psnr", "image.ssim", "image.uqi", "nominal", "regression", "retrieval",
    "segmentation", "text.bleu", "text.cer", "text.chrf", "text.edit", "text.perplexity",
    "text.wer", "wrappers",
)  # fmt: skip

_MODULE = TargetKind("a module of torch.nn", "torch.nn.Module", "torch.nn", ("torch.nn",))
_OPTIM = "torch.optim"
_SCHEDULERS = "torch.optim.lr_scheduler"
_METRIC = TargetKind(
    "a metric of torchmetrics that needs no model or file", "torchmetrics.Metric",
    "torchmetrics", tuple(f"torchmetrics.{part}" for part in _METRICS),
)  # fmt: skip
_INSIDE = (
    _MODULE,
    TargetKind(f"an optimizer of {_OPTIM}", f"{_OPTIM}.Optimizer", _OPTIM, (_OPTIM,)),
    TargetKind(f"a scheduler of {_SCHEDULERS}", f"{_SCHEDULERS}.LRScheduler", _OPTIM, (_OPTIM,)),
    _METRIC,
)
"""Kinds of the frameworks that may be inside the arguments of another target."""

_PL = "lightning.pytorch"
_MADE = {
    "model": TargetKind("a LightningModule of yours", f"{_PL}.LightningModule", "", ()),
    "datamodule": TargetKind(
        "a LightningDataModule of yours", f"{_PL}.LightningDataModule", "", ()
    ),
    "trainer": TargetKind(f"{_PL}.Trainer", f"{_PL}.Trainer", _PL, (f"{_PL}.trainer",)),
    "trainer.callbacks": TargetKind(
        f"a callback of {_PL}.callbacks", f"{_PL}.callbacks.Callback",
        f"{_PL}.callbacks", (f"{_PL}.callbacks",),
    ),
    "trainer.loggers": TargetKind(
        f"a logger of {_PL}.loggers that writes files", f"{_PL}.loggers.Logger",
        f"{_PL}.loggers", (f"{_PL}.loggers.csv_logs", f"{_PL}.loggers.tensorboard"),
    ),
    "evaluate.metrics": _METRIC,
    "suite.search.sampler": TargetKind(
        "a sampler of optuna.samplers", "optuna.samplers.BaseSampler",
        "optuna.samplers", ("optuna.samplers",),
    ),
    "suite.search.pruner": TargetKind(
        "a pruner of optuna.pruners", "optuna.pruners.BasePruner",
        "optuna.pruners", ("optuna.pruners",),
    ),
}  # fmt: skip
"""Kind that a target at a key must make, also if it is the user's."""

_AT: dict[str, tuple[TargetKind, ...]] = {
    **{key: (kind,) for key, kind in _MADE.items()},
    **dict.fromkeys(("data.sample_transforms", "data.transforms", "data.augment"), (_MODULE,)),
    "data.dataset": (),
    "data.collate": (),
    "dataset.reader": (),
    "evaluate.figures": (),
    "train.function": (),
}
"""Kinds of the frameworks that may stand at a key."""

_COMPLETED = ("trainer.loggers", "evaluate.figures", "data.dataset", "dataset.reader")
"""Keys of targets that get further arguments from headrace: `save_dir`, results, samples, paths."""

_INDEX = re.compile(r"\[\d+\]$|(?<=^evaluate\.(?:metrics|figures))\.\w+$")
"""Index or name after the key of a list or mapping of targets."""
_SWITCH = (bool, "true or false")
SPECIAL_KEYS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "_target_": (str, "a dotted name"),
    "_args_": ((list, tuple), "a list"),
    "_partial_": _SWITCH,
    "_recursive_": _SWITCH,
    "_convert_": (str, "'all'"),
}
"""Keys of a target that are not arguments, as in Hydra; their types and valid values."""


@dataclass(frozen=True, kw_only=True)
class TargetUse:
    """One `_target_` of a recipe."""

    key: str
    """Its key, as in `model.optimizer`."""
    name: str
    """Its dotted name."""
    config: Mapping[str, object]
    """It and its arguments."""
    is_whole: bool
    """Whether it gets no further arguments."""

    @property
    def given(self) -> tuple[str, ...]:
        """Names of its arguments."""
        return tuple(name for name in self.config if name not in SPECIAL_KEYS)

    @property
    def kinds(self) -> tuple[TargetKind, ...]:
        """Kinds of the frameworks that may stand there."""
        return _AT.get(_INDEX.sub("", self.key), _INSIDE)


def made_at(key: str) -> TargetKind | None:
    """Return what a target at a key must make; None if any object is valid."""
    return _MADE.get(_INDEX.sub("", key))


def targets_of(recipe: Recipe) -> dict[str, Target]:
    """Return all targets of a recipe by key, without those inside them."""
    found = {"trainer": Target.model_validate({"_target_": recipe.trainer.target})}
    for key in _AT:
        value: Any = recipe
        for name in key.split("."):
            value = getattr(value, name, None)
        if isinstance(value, Target):
            found[key] = value
        elif isinstance(value, Mapping):
            found |= {f"{key}.{name}": each for name, each in value.items()}
        elif isinstance(value, tuple):
            found |= {f"{key}[{index}]": each for index, each in enumerate(value)}
    return found


def uses_of(recipe: Recipe, *keys: str) -> Iterator[TargetUse]:
    """Yield every `_target_` of a recipe, or those at some keys, the inner ones first."""
    for key, target in targets_of(recipe).items():
        if not keys or key.startswith(keys):
            is_whole = key != "trainer" and not key.startswith(_COMPLETED)
            yield from uses(key, target.as_config(), is_whole=is_whole)


def uses(key: str, config: object, *, is_whole: bool = True) -> Iterator[TargetUse]:
    """Yield every `_target_` in the plain values of a key, the inner ones first."""
    if isinstance(config, Mapping):
        _check_words(key, config)
        inner_whole = is_whole and config.get("_recursive_", True) is True
        for name, value in config.items():
            yield from uses(f"{key}.{name}", value, is_whole=inner_whole)
        if "_target_" in config:
            is_all = not {"_args_", "_partial_"} & config.keys()
            name = str(config["_target_"])
            yield TargetUse(key=key, name=name, config=config, is_whole=is_whole and is_all)
    elif isinstance(config, list | tuple):
        for index, value in enumerate(config):
            yield from uses(f"{key}[{index}]", value, is_whole=is_whole)


def wrong_kind(key: str, what: str, kind: TargetKind) -> TargetError:
    """Return the error for an object of a wrong kind for its key."""
    if key != "model":
        return TargetError(
            f"'{key}' {what}, not a {kind.class_name}", f"Derive it from {kind.base}."
        )
    return TargetError(
        f"'{key}' {what}, not a {kind.class_name}",
        f"Wrap it in a {kind.base} that has training_step and configure_optimizers, or name a "
        "script of yours in train.script.",
    )


def is_under(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a dotted name is one of the prefixes or lies below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def listed_by(site: Site) -> Sequence[str] | None:
    """Return the names and packages that a site allows besides the frameworks' kinds; None: all."""
    return site.allowed_targets if site.is_fenced else None


def is_listed(name: str, listed: Sequence[str] | None) -> bool:
    """Whether `listed` holds a name, or a package of it other than the frameworks; None: all."""
    if listed is None:
        return True
    whole = (each for each in listed if each.partition(".")[0] not in FRAMEWORKS)
    return name in listed or is_under(name, whole)


def check_targets(recipe: Recipe, site: Site, *keys: str) -> None:
    """Refuse a recipe that names code, at any of its keys or at `keys`, that is not allowed."""
    listed, folders = listed_by(site), tuple(allowed_path(folder, site) for folder in recipe.code)
    for use in uses_of(recipe, *keys):
        if not is_listed(use.name, listed) and not _may_lie_in(folders, use.name):
            check_package(use, listed, folders)
    for use in uses("trainer.extra", recipe.trainer.extra):
        raise TargetError(
            f"{use.key} names the target '{use.name}', but 'trainer.extra' holds plain values",
            "Callbacks go to 'trainer.callbacks', loggers to 'trainer.loggers'.",
        )


def check_package(use: TargetUse, listed: Sequence[str] | None, code: Sequence[Path] = ()) -> None:
    """Refuse a name outside of the packages that are allowed at its key."""
    if not any(is_under(use.name, (kind.names,)) for kind in use.kinds if kind.names):
        raise not_allowed(use, use.name, listed, code)


def allowed_path(code: str, site: Site) -> Path:
    """Return a path of user code, resolved, existing or not; raise TargetError if not allowed."""
    path = Path(code).expanduser().resolve()
    if not site.is_fenced:
        return path
    roots = [Path(root).expanduser().resolve() for root in site.allowed_code]
    if not any(path.is_relative_to(root) for root in roots):
        allowed = ", ".join(str(root) for root in roots) or "none"
        raise TargetError(
            f"Site '{site.name}' does not allow code from {path}",
            f"Allowed folders: {allowed}. Move the code there, or add its folder to "
            "'allowed_code' of the site.",
        )
    return path


def not_allowed(
    use: TargetUse, name: str, listed: Sequence[str] | None, code: Sequence[Path] = ()
) -> TargetError:
    """Return the error for a target that the site does not allow, maybe under an alias."""
    why = next(hidden(code, use.name.partition(".")[0]), "")
    kinds = [kind.name for kind in use.kinds]
    modules = [f"modules in {folder}" for folder in code]
    return TargetError(
        f"The site does not allow the target '{name}' at {use.key}{why and f': {why}'}",
        f"Allowed there: {'; '.join([*kinds, *(listed or ()), *modules])}. Add the name to "
        "'allowed_targets' of the site, or put your code below one of its 'allowed_code' folders "
        "and name that folder in 'code' of the recipe.",
    )


def no_attribute(use: TargetUse) -> TargetError:
    """Return the error for a method or another attribute of a class or function."""
    return TargetError(
        f"'{use.name}' at {use.key} is an attribute, not a class or function of a module",
        "Name the class itself, or write a function in a module of yours.",
    )


def _may_lie_in(folders: Sequence[Path], name: str) -> bool:
    """Whether a module may come from the code folders; folders of nodes only may hold it."""
    top = name.partition(".")[0]
    return any(
        not folder.is_dir() or (folder / top).is_dir() or any(folder.glob(f"{top}.*"))
        for folder in folders
    )


def _check_words(key: str, config: Mapping[Any, object]) -> None:
    for name, value in config.items():
        if not isinstance(name, str) and "_target_" in config:
            raise TargetError(f"{key} has the key {name!r}, which cannot name an argument")
        if not isinstance(name, str) or re.fullmatch(r"_\w+_", name) is None:
            continue
        if name not in SPECIAL_KEYS:
            raise TargetError(f"{key} has the unknown key '{name}'", nearest(name, SPECIAL_KEYS))
        if "_target_" not in config:
            raise TargetError(f"{key} has '{name}' but no '_target_'", "Name one, or leave it out.")
        _check_word(f"{key}.{name}", name, value)


def _check_word(key: str, name: str, value: object) -> None:
    wanted, valid = SPECIAL_KEYS[name]
    if not isinstance(value, wanted) or (name == "_convert_" and value != "all"):
        raise TargetError(f"{key} is {value!r}", f"Valid: {valid}.")
    parts = str(value).split(".") if name == "_target_" else ()
    if not all(part.isidentifier() and not part.startswith("_") for part in parts):
        raise TargetError(f"{key} is '{value}', which is not a dotted name of public names")
