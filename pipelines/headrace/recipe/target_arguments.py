"""Check the arguments of targets against their source code; nothing is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

from headrace.errors import TargetError, nearest, shortened, warn_once
from headrace.recipe import targets
from headrace.recipe.python_source import Signature, SourceCode, hidden, installed
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.recipe.targets import FRAMEWORKS, TargetUse

_WITH_PACKAGES = (
    "lightning.pytorch.loggers", "pytorch_lightning.loggers", "torchmetrics.detection",
)  # fmt: skip
_IOU = "IntersectionOverUnion"
_NEEDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "CometLogger": (("comet_ml",),),
    "LitLogger": (("litlogger",),),
    "MLFlowLogger": (("mlflow",),),
    "NeptuneLogger": (("neptune",),),
    "TensorBoardLogger": (("tensorboard", "tensorboardX"),),
    "WandbLogger": (("wandb",),),
    "MeanAveragePrecision": (("torchvision",), ("pycocotools", "faster_coco_eval")),
    **{f"{kind}{_IOU}": (("torchvision",),)
       for kind in ("", "Generalized", "Distance", "Complete")},
}  # fmt: skip
"""A logger of Lightning or metric of torchmetrics looks for a module of each group when made."""
_NUMBERS = re.compile(r"\s*[-+.eE]*\d[-+.\deE]*\s*(,\s*[-+.eE]*\d[-+.\deE]*\s*)+")


def check_reader(recipe: Recipe, role: Role, listed: Sequence[str] | None = ()) -> None:
    """Refuse a reader that cannot be called with its arguments; `listed` as `check_arguments`."""
    _check(targets.uses_of(recipe, "dataset.reader"), recipe, role, listed)


def check_arguments(recipe: Recipe, role: Role, listed: Sequence[str] | None = ()) -> None:
    """Refuse targets of a training that cannot be made from their arguments.

    Targets of a wrong kind for their key are refused, too. Nodes of `role` may have other packages
    than this machine. `listed` are names and packages that the site lists; None: all.
    """
    for warning in hidden(_code(recipe)) if is_as_here(role) else ():
        warn_once(f"{warning} if the recipe needs it")
    found = (each for each in targets.uses_of(recipe) if not each.key.startswith("dataset.reader"))
    _check(found, recipe, role, listed)
    trainer = recipe.trainer
    extra = TargetUse(
        key="trainer.extra", name=trainer.target, config=trainer.extra, is_whole=False
    )
    _check_given(extra, source_code(recipe, role))


def check_packages(
    recipe: Recipe, role: Role, keys: Sequence[str] = ("trainer.loggers", "evaluate.metrics")
) -> None:
    """Refuse loggers and metrics without their packages, and those whose results would be lost."""
    for use in targets.uses_of(recipe, *keys):
        place, _, kind = use.name.rpartition(".")
        groups = _NEEDS.get(kind, ()) if place.startswith(_WITH_PACKAGES) else ()
        lacking = [group for group in groups if not any(map(find_spec, group))]
        if lacking and is_as_here(role):
            names = " and ".join(" or ".join(group) for group in lacking).replace("_", "-")
            package = lacking[0][0].replace("_", "-")
            raise TargetError(
                f"{use.key}: {kind} needs {names}, which is not installed on the machine that "
                "trains and evaluates (it has the packages of this one)",
                "Install what it needs: pip install 'headrace[detection]'."
                if use.key.startswith("evaluate")
                else f"Install it: pip install {package}. Without any package: "
                "lightning.pytorch.loggers.CSVLogger.",
            )
        if use.name.endswith("CSVLogger") and "version" in use.config:
            raise TargetError(
                f"{use.key}: with 'version', each start of the ranks deletes the metrics.csv of "
                "the one before",
                "Leave it out: each start then writes a folder version_0, version_1, … of its own.",
            )
        if groups and use.config.get("iou_type", "bbox") != "bbox":
            raise TargetError(
                f"{use.key}: {kind} of masks keeps other things than tensors, which are not stored "
                "with the predictions of a shard",
                "Compare boxes, iou_type: bbox, or draw what you need by evaluate.figures.",
            )


def _check(
    found: Iterator[TargetUse], recipe: Recipe, role: Role, listed: Sequence[str] | None = ()
) -> None:
    code = source_code(recipe, role)
    for use in found:
        if listed is None and is_as_here(role):
            _check_module(use, code)
        try:
            if listed is None or use.name not in listed:
                _check_kind(use, code, listed)
            _check_given(use, code)
        except SyntaxError as error:
            if is_as_here(role):  # another Python may know more
                raise TargetError(
                    f"{use.key}: {use.name} cannot be imported: {error.msg} "
                    f"({error.filename}, line {error.lineno})",
                    "Correct the file.",
                ) from None


def source_code(recipe: Recipe, role: Role) -> SourceCode:
    """Return the source code that targets of a recipe are imported from, as far as it is here."""
    here = installed() if is_as_here(role) else ()
    return SourceCode([*here, *_code(recipe)], finds_installed=bool(here))


def _code(recipe: Recipe) -> tuple[Path, ...]:
    return tuple(Path(folder).expanduser().resolve() for folder in recipe.code)


def is_as_here(role: Role) -> bool:
    """Whether the nodes of a role import the packages of this process."""
    batch = role.batch
    is_contained = batch.container is not None and batch.container.runtime != "none"
    is_changed = batch.python or batch.modules or batch.prologue or "PYTHONPATH" in role.env
    return not (is_contained or is_changed)


def _check_module(use: TargetUse, code: SourceCode) -> None:
    """Refuse a name whose package is neither installed nor in a code folder."""
    top = use.name.partition(".")[0]
    if code.find(top) is None and all(Path(each).is_dir() for each in code.folders):
        names = {each.name for each in iter_modules([str(Path.cwd()), *code.folders])}
        near = get_close_matches(top, names, n=1, cutoff=0.75)
        raise TargetError(
            f"{use.key} is '{use.name}', and no module is called '{top}'",
            f"{f'Did you mean {near[0]!r}? ' if near else ''}Correct the name, install its "
            "package, or name its folder in 'code' of the recipe. Modules beside the recipe and in "
            "the working folder need no 'code'.",
        )


def _check_kind(use: TargetUse, code: SourceCode, listed: Sequence[str] | None) -> None:
    found = code.definition(use.name)
    if found is None:
        if listed is not None and code.definition(use.name.rpartition(".")[0]) is not None:
            raise targets.no_attribute(use)
        return
    kinds = use.kinds if listed is not None and targets.is_under(use.name, FRAMEWORKS) else ()
    fits = any(
        targets.is_under(use.name, (kind.names,))
        and targets.is_under(found.module.name, kind.homes)
        and code.derives_from(found, kind.class_name) is not False
        for kind in kinds
        if kind.names
    )
    if kinds and not fits:
        raise targets.not_allowed(use, f"{found.module.name}.{found.node.name}", listed)
    made = targets.made_at(use.key) if isinstance(found.node, ast.ClassDef) else None
    if made is not None and code.derives_from(found, made.class_name) is False:
        raise targets.wrong_kind(use.key, f"is the class {use.name}", made)


def _check_given(use: TargetUse, code: SourceCode) -> None:
    found = code.definition(use.name)
    takes = None if found is None else code.signature(found)
    if takes is None:
        return
    unknown = [name for name in use.given if name not in takes.names]
    if unknown and not takes.takes_any:
        raise TargetError(
            f"{use.key}: {use.name} has no argument '{unknown[0]}'",
            nearest(unknown[0], takes.names),
        )
    missing = [name for name in takes.required if name not in use.given]
    if missing and use.is_whole:
        names = ", ".join(f"'{name}'" for name in missing)
        raise TargetError(
            f"{use.key}: {use.name} needs {names}, not given in the recipe",
            f"Set {use.key}.{missing[0]}. It takes: {', '.join(takes.names)}.",
        )
    for name in use.given:
        _check_value(use, name, use.config[name], takes)


def _check_value(use: TargetUse, name: str, value: object, takes: Signature) -> None:
    types, are_many = takes.types.get(name, frozenset()), _is_list_of_numbers(value)
    is_text_for_number = name in takes.numbers and isinstance(value, str) and are_many
    if _cannot_be(value, types) or is_text_for_number:
        wanted = " or ".join(sorted(types)) or "number"
        raise TargetError(
            f"{use.key}.{name} is {shortened(repr(value))}, but {use.name} takes one {wanted} "
            "there",
            "A run has one value for each argument: ask for a run with each of them."
            if are_many
            else f"Write it as {wanted}.",
        )


def _cannot_be(value: object, types: frozenset[str]) -> bool:
    """Whether a value has none of the plain types; False if no types are known."""
    if not types or value is None or isinstance(value, int):
        return False
    if isinstance(value, float):
        return not types & {"float", "str"}
    if isinstance(value, str):
        return "str" not in types
    return isinstance(value, Sequence | Mapping) and "_target_" not in value


def _is_list_of_numbers(value: object) -> bool:
    """Whether a value holds several numbers, as in `model.lr=0.1,0.01`."""
    if isinstance(value, str):
        return _NUMBERS.fullmatch(value) is not None
    is_list = isinstance(value, Sequence) and bool(value)
    return is_list and all(isinstance(each, int | float) for each in value)  # type: ignore[attr-defined]
