"""What a model must have for a recipe: asked of its source before a lease, later of the model."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from headrace.errors import RecipeError, nearest
from headrace.recipe.python_source import Definition, SourceCode, bindings_in
from headrace.recipe.recipe import Recipe
from headrace.recipe.targets import FRAMEWORKS, is_under

TEST_HOOKS = (
    "on_test_start", "on_test_epoch_start", "on_test_batch_start", "on_test_batch_end",
    "on_test_epoch_end", "on_test_end",
)  # fmt: skip
"""Hooks that do not run if each shard is tested on its own."""

_SCORING = ("predict_step", "forward", "__call__")
"""Evaluation needs one of these methods: Lightning's `predict_step` calls the model."""
_REMOVED = {
    "training_epoch_end": "on_train_epoch_end",
    "validation_epoch_end": "on_validation_epoch_end",
}
"""Hooks of Lightning 1, and their replacements."""
_TRAINING = ("training_step", "configure_optimizers")
_LOADERS = ("train_dataloader", "val_dataloader")
"""Methods that Lightning would not call if headrace passes its own loaders."""
ASKED_FOR = (*_TRAINING, *_LOADERS, *_REMOVED, *_SCORING, "test_step", *TEST_HOOKS)
"""Methods that `problems` asks for."""

_LOGS = ("log", "log_dict")
_LOGS_NOTHING = ("EarlyStopping", "ModelCheckpoint")
"""Callbacks of Lightning that log no metrics."""
_LOGS_UNSEEN = re.compile(r"callback_metrics|logged_metrics|\b_results\b|\bconfigure_callbacks\b")
_COUNTED = ("epoch", "step")
"""Counters that callbacks may watch though no model logs them."""


def problems(
    model: str,
    recipe: Recipe,
    methods: Collection[str],
    may_have: Callable[[str], bool],
    *,
    trains: bool,
) -> Iterator[RecipeError]:
    """Yield an error for each method that a recipe's model must have, or must not have.

    The class `model` defines `methods`; `may_have` returns whether it may have a name in another
    way. `trains` is False for an evaluation alone.
    """
    spec = recipe.evaluate
    if trains:
        yield from _of_training(model, recipe, methods, may_have)
    if spec is not None and spec.step == "predict" and not any(map(may_have, _SCORING)):
        step = (
            "Set evaluate.step: test and evaluate.task: custom, and its test_step is taken; or "
            "write "
            if "test_step" in methods
            else "Write "
        )
        yield RecipeError(
            f"The model {model} has neither predict_step nor forward, by which evaluate gets "
            "scores",
            f"{step}predict_step(batch, index), which returns them; or set evaluate: null.",
        )
    if spec is None or spec.step != "test":
        return
    if not may_have("test_step"):
        yield RecipeError(
            f"The model {model} has no test_step, which evaluate.step: test calls",
            "Write one, or set evaluate.step: predict.",
        )
    for hook in (each for each in TEST_HOOKS if each in methods):
        yield RecipeError(
            f"{model} has {hook}, which does not run where each shard is tested on its own",
            "Log in test_step: numbers, or the torchmetrics object itself.",
        )


def _of_training(
    model: str, recipe: Recipe, methods: Collection[str], may_have: Callable[[str], bool]
) -> Iterator[RecipeError]:
    has_data = recipe.dataset is not None or recipe.datamodule is not None
    for loader in (each for each in _LOADERS if has_data and each in methods):
        yield RecipeError(
            f"The model {model} defines '{loader}', which would not be used: the recipe names "
            "other data",
            "Take it out, or leave 'dataset' and 'datamodule' out of the recipe: then the model's "
            "own loaders are used. data.dataset takes your Dataset, data.collate forms batches.",
        )
    if not has_data and not any(map(may_have, _LOADERS)):
        yield RecipeError(
            f"The recipe has neither 'dataset' nor 'datamodule', and the model {model} has no "
            "train_dataloader",
            "Write a dataset, as in dataset: {name: mine, source: /data/mine}, or name a "
            "LightningDataModule in 'datamodule'.",
        )
    for name in (each for each in _REMOVED if each in methods):
        yield RecipeError(
            f"The model {model} has {name}, which Lightning 2 does not call any more",
            f"Write {_REMOVED[name]} in its place.",
        )
    needed = () if _own_callbacks(recipe) else _TRAINING  # callbacks may give it one
    for name in (each for each in needed if not may_have(each)):
        hint = nearest(name, methods)
        yield RecipeError(
            f"The model {model} has no {name}, which training calls",
            hint if "Did you mean" in hint else "Write one.",
        )


def check_model_source(recipe: Recipe, code: SourceCode, *, trains: bool = True) -> None:
    """Refuse a model that lacks a required method, or never logs the monitored metric.

    Imports nothing. A model is not checked if its source, or that of a base, is incomplete.
    `trains` is False for an evaluation alone.

    Raises:
        RecipeError: A method or metric is missing, or a method is not allowed.
    """
    try:
        classes = _classes(recipe, code)
    except (OSError, SyntaxError, ValueError, RecursionError):  # Python reports it on import
        return
    if not classes:
        return
    name = classes[0].node.name
    body = [node for each in classes for node in each.node.body]
    methods = [node for node in body if isinstance(node, ast.FunctionDef)]
    defined = [m.name for m in methods if m.name not in TEST_HOOKS or not _does_nothing(m)]
    for error in problems(name, recipe, defined, partial(_may_have, classes), trains=trains):
        raise error
    named = [*_bounded(recipe), *(_looked_at(recipe) if trains else ())]
    if not named or (logged := _logged(classes)) is None:
        return
    for key, metric in named:
        if not any(re.fullmatch(rf"{re.escape(each)}([_/].*)?", metric) for each in logged):
            raise RecipeError(
                f"{key} names '{metric}', which the model {name} does not log",
                nearest(metric, logged) if logged else "Log it in validation_step: self.log(…).",
            )


def _classes(recipe: Recipe, code: SourceCode) -> Sequence[Definition]:
    """Return the model's class and its bases except LightningModule; empty if not all are known."""
    found = None if recipe.model is None else code.definition(recipe.model.target)
    classes = [] if found is None else list(code.lineage(found, end="LightningModule"))
    own = [each for each in classes if each and not is_under(each.module.name, FRAMEWORKS)]
    others = {each and each.node.name for each in classes if each not in own}
    return own if others == {"LightningModule"} else ()


def _does_nothing(method: ast.FunctionDef) -> bool:
    """Whether the body of a method is a docstring, `pass` or `...`."""
    return all(
        isinstance(each, ast.Pass)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in method.body
    )


def _may_have(classes: Sequence[Definition], name: str) -> bool:
    """Whether the classes or their modules seem to define an attribute."""
    given = re.compile(rf"\.{name}\s*=[^=]")
    return any(
        name in bindings_in(each.node)
        or not each.module.lacks(name)
        or given.search(each.module.text)
        for each in classes
    )


def _own_callbacks(recipe: Recipe) -> bool:
    """Whether the user's code may change the model before training."""
    trainer = recipe.trainer
    targets = (trainer.target, *(each.target for each in trainer.callbacks))
    return "callbacks" in trainer.extra or not all(is_under(each, FRAMEWORKS) for each in targets)


def _looked_at(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield keys of a recipe that name metrics of the training, and these; if only models log."""
    callbacks = recipe.trainer.callbacks
    kinds = {each.target.rpartition(".")[2] for each in callbacks}
    if _own_callbacks(recipe) or not kinds.issubset(_LOGS_NOTHING):
        return
    if recipe.trainer.monitor is not None:
        yield "trainer.monitor", recipe.trainer.monitor
    for index, config in enumerate(each.as_config() for each in callbacks):
        name = config.get("monitor")
        if isinstance(name, str) and name not in _COUNTED and config.get("strict", True):
            yield f"trainer.callbacks[{index}].monitor", name


def _bounded(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield keys of a recipe that bound metrics of `test_step`, and these names."""
    spec = recipe.evaluate
    if spec is not None and spec.step == "test":
        for key, bounds in (("min_metrics", spec.min_metrics), ("max_metrics", spec.max_metrics)):
            others = (name for name in bounds if name.partition(".")[0] not in spec.metrics)
            yield from ((f"evaluate.{key}", name) for name in others)


def _logged(classes: Sequence[Definition]) -> set[str] | None:
    """Return the names that the classes log; None if their source does not show all."""
    names: set[str | None] = {None} if _may_have(classes, "log") else set()
    for each in classes:
        is_open = _LOGS_UNSEEN.search(each.module.text) or "log_dict" in bindings_in(each.node)
        names |= {None} if is_open else set(_logged_in(each.node))
    return None if None in names else {str(name) for name in names}


def _logged_in(scope: ast.AST) -> Iterator[str | None]:
    """Yield the names that a class logs; None for a computed one, or if it passes `self` on."""
    nodes = list(ast.walk(scope))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    owners = {id(node.value) for node in attributes}
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    if any(isinstance(n, ast.Name) and n.id == "self" and id(n) not in owners for n in nodes):
        yield None
    if any(node.attr in _LOGS and _of_self(node) and id(node) not in called for node in attributes):
        yield None
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _LOGS:
            if _of_self(node.func):
                yield from _names_in(node)
            elif len(node.args) + len(node.keywords) > 1:  # else it is a logarithm
                yield None


def _of_self(node: ast.AST) -> bool:
    return ast.unparse(node).startswith("self.")


def _names_in(call: ast.Call) -> Iterator[str | None]:
    """Yield the names in a call of `self.log` or `self.log_dict`; None for one that is computed."""
    given = {each.arg: each.value for each in call.keywords}
    first = call.args[0] if call.args else given.get("name", given.get("dictionary"))
    for key in first.keys if isinstance(first, ast.Dict) else [first]:
        yield key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None
