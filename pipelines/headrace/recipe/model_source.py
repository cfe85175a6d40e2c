"""Check a model's steps and logged metrics by its source code, as far as that shows them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from headrace.errors import RecipeError, nearest
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.python_source import Definition, SourceCode, bindings_in
from headrace.recipe.recipe import Recipe
from headrace.recipe.targets import FRAMEWORKS, is_under

TEST_HOOKS = (
    "on_test_start", "on_test_epoch_start", "on_test_batch_start", "on_test_batch_end",
    "on_test_epoch_end", "on_test_end",
)  # fmt: skip
"""Hooks that do not run if each shard is tested on its own."""

SCORING = ("predict_step", "forward", "__call__")
"""Evaluation needs one of these methods: Lightning's `predict_step` calls the model."""
_REMOVED = {
    "training_epoch_end": "on_train_epoch_end",
    "validation_epoch_end": "on_validation_epoch_end",
}
"""Hooks of Lightning 1, and their replacements."""
LOADERS = ("train_dataloader", "val_dataloader")
"""Methods that Lightning would not call, since headrace passes its own loaders."""
_LOGS_NOTHING = ("EarlyStopping", "ModelCheckpoint")
"""Callbacks of Lightning that log no metrics."""
_LOGS_UNSEEN = re.compile(r"callback_metrics|logged_metrics|\b_results\b|\bconfigure_callbacks\b")
_MOST_CLASSES = 20
_COUNTED = ("epoch", "step")
"""Counters that callbacks may watch though no model logs them."""


def check_model_source(recipe: Recipe, code: SourceCode, *, trains: bool = True) -> None:
    """Refuse a model that lacks a required step, or never logs the monitored metric.

    Imports nothing. A model is not checked if its source, or that of a base, is incomplete.

    Args:
        recipe: The recipe.
        code: The source code of the model's classes.
        trains: Whether the model is trained; otherwise it is only evaluated.

    Raises:
        RecipeError: A step or metric is missing, or a hook is not allowed.
    """
    try:
        classes = _classes(recipe, code)
    except (OSError, SyntaxError, ValueError, RecursionError):  # Python reports it on import
        return
    if classes is not None:
        source = ModelSource(recipe, classes)
        if trains:
            source.check_training()
        source.check_evaluation()
        source.check_metrics(trains=trains)


def _classes(recipe: Recipe, code: SourceCode) -> list[Definition] | None:
    """Return the model's class and its bases except LightningModule; None if they are unknown."""
    found = None if recipe.model is None else code.definition(recipe.model.target)
    if found is None:
        return None
    lineage, is_module = [found], False
    for each in lineage:
        is_of_lightning = is_under(each.module.name, FRAMEWORKS)
        if is_of_lightning and each.node.name == "LightningModule":
            is_module = True
            continue
        bases = None if is_of_lightning else code.plain_bases(each)
        if bases is None:
            return None
        lineage += bases
        if len(lineage) > _MOST_CLASSES:
            return None
    own = [each for each in lineage if not is_under(each.module.name, FRAMEWORKS)]
    return own if is_module else None


class ModelSource:
    """The source code of a model's classes.

    Args:
        recipe: The recipe.
        classes: The model's class and its bases of the user.
    """

    def __init__(self, recipe: Recipe, classes: Sequence[Definition]) -> None:
        self._recipe, self._classes = recipe, classes
        self._name = classes[0].node.name
        self._bound = {name for each in classes for name in bindings_in(each.node)}
        body = [node for each in classes for node in ast.iter_child_nodes(each.node)]
        methods = [node for node in body if isinstance(node, ast.FunctionDef)]
        self._methods = {
            node.name for node in methods if node.name not in TEST_HOOKS or not _does_nothing(node)
        }

    def check_training(self) -> None:
        """Refuse a model that Lightning or headrace cannot train."""
        own = [name for name in LOADERS if not self._lacks(name)]
        has_data = self._recipe.dataset is not None or self._recipe.datamodule is not None
        if has_data and (written := [name for name in own if name in self._methods]):
            raise RecipeError(*with_loader(self._name, written[0]))
        if not has_data and not own:
            raise RecipeError(*without_data(self._name))
        for name, now in _REMOVED.items():
            if name in self._methods:
                raise RecipeError(
                    f"The model {self._name} has {name}, which Lightning 2 does not call any more",
                    f"Write {now} in its place.",
                )
        if not _own_callbacks(self._recipe):  # which may give it one
            for name in ("training_step", "configure_optimizers"):
                if self._lacks(name):
                    hint = nearest(name, self._bound)
                    raise RecipeError(
                        f"The model {self._name} has no {name}, which training calls",
                        hint if "Did you mean" in hint else "Write one.",
                    )

    def check_evaluation(self) -> None:
        """Refuse a model that evaluation cannot call."""
        problem = evaluation_problem(
            self._name, self._recipe.evaluate, self._methods, lambda name: not self._lacks(name)
        )
        if problem is not None:
            raise RecipeError(*problem)

    def check_metrics(self, *, trains: bool) -> None:
        """Refuse keys that name metrics the model does not log."""
        named = [*_looked_at(self._recipe)] if trains and _logs_alone(self._recipe) else []
        named += _bounded(self._recipe)
        logged = self._logged() if named else None
        for key, name in () if logged is None else named:
            self._check_logged(key, name, logged or ())

    def _check_logged(self, key: str, name: str, names: Collection[str]) -> None:
        if not any(name == each or name.startswith((f"{each}_", f"{each}/")) for each in names):
            raise RecipeError(
                f"{key} names '{name}', which the model {self._name} does not log",
                nearest(name, names) if names else "Log it in validation_step: self.log(…).",
            )

    def _lacks(self, name: str) -> bool:
        """Whether neither the classes nor their modules seem to define an attribute."""
        given = re.compile(rf"\.{name}\s*=[^=]")
        return name not in self._bound and all(
            each.module.lacks(name) and not given.search(each.module.text) for each in self._classes
        )

    def _logged(self) -> set[str] | None:
        """Return the names that the model logs; None if the source does not show all."""
        if "log" in self._bound or "log_dict" in self._bound or not self._lacks("log"):
            return None
        found: set[str] = set()
        for each in self._classes:
            names = None if _LOGS_UNSEEN.search(each.module.text) else _logged_in(each.node)
            if names is None:
                return None
            found |= names
        return found


def without_data(model: str) -> tuple[str, str]:
    """Return the error and hint for a model that nothing gives samples."""
    return (
        f"The recipe has neither 'dataset' nor 'datamodule', and the model {model} has no "
        "train_dataloader",
        "Write a dataset, as in dataset: {name: mine, source: /data/mine}, or name a "
        "LightningDataModule in 'datamodule'.",
    )


def _does_nothing(method: ast.FunctionDef) -> bool:
    """Whether the body of a method is a docstring, `pass` or `...`."""
    return all(
        isinstance(each, ast.Pass)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in method.body
    )


def with_loader(model: str, name: str) -> tuple[str, str]:
    """Return the error and hint for a model with a loader of its own."""
    return (
        f"The model {model} defines '{name}', which would not be used: the recipe names other data",
        "Take it out, or leave 'dataset' and 'datamodule' out of the recipe: then the model's own "
        "loaders are used. data.dataset takes your Dataset, data.collate forms batches.",
    )


def evaluation_problem(
    model: str, spec: EvaluateSpec | None, methods: Collection[str], may_have: Callable[[str], bool]
) -> tuple[str, str] | None:
    """Return the error and hint for a model that evaluation cannot call; None if it can.

    The class `model` defines `methods`; `may_have` returns whether it may define a name.
    """
    if spec is None:
        return None
    if spec.step == "predict" and not any(map(may_have, SCORING)):
        step = (
            "Set evaluate.step: test and evaluate.task: custom, and its test_step is taken; or "
            "write "
            if "test_step" in methods
            else "Write "
        )
        return (
            f"The model {model} has neither predict_step nor forward, by which evaluate gets "
            "scores",
            f"{step}predict_step(batch, index), which returns them; or set evaluate: null.",
        )
    if spec.step == "test" and not may_have("test_step"):
        return (
            f"The model {model} has no test_step, which evaluate.step: test calls",
            "Write one, or set evaluate.step: predict.",
        )
    for hook in TEST_HOOKS if spec.step == "test" else ():
        if hook in methods:
            return (
                f"{model} has {hook}, which does not run where each shard is tested on its own",
                "Log in test_step: numbers, or the torchmetrics object itself.",
            )
    return None


def _own_callbacks(recipe: Recipe) -> bool:
    """Whether the user's code may change the model before training."""
    trainer = recipe.trainer
    targets = (trainer.target, *(each.target for each in trainer.callbacks))
    return "callbacks" in trainer.extra or not all(is_under(each, FRAMEWORKS) for each in targets)


def _logs_alone(recipe: Recipe) -> bool:
    """Whether only the model logs metrics."""
    kinds = [each.target.rpartition(".")[2] for each in recipe.trainer.callbacks]
    return not _own_callbacks(recipe) and all(kind in _LOGS_NOTHING for kind in kinds)


def _looked_at(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield keys of a recipe that name metrics of the training, and these names."""
    if recipe.trainer.monitor is not None:
        yield "trainer.monitor", recipe.trainer.monitor
    for index, callback in enumerate(recipe.trainer.callbacks):
        config = callback.as_config()
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


def _logged_in(scope: ast.AST) -> set[str] | None:
    """Return the names that a class logs; None if it passes `self` on, or computes a name."""
    found: set[str] = set()
    known: set[int] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            known.add(id(node.value))
        if isinstance(node, ast.Call) and _may_log(node):
            names = _names_in(node) if _is_of_self(node.func) else None
            if names is None:
                return None
            found |= names
            known.add(id(node.func))
    for node in ast.walk(scope):
        is_itself = isinstance(node, ast.Name) and node.id == "self"
        if (is_itself or _is_of_self(node)) and id(node) not in known:
            return None
    return found


def _is_of_self(node: ast.AST) -> bool:
    is_log = isinstance(node, ast.Attribute) and node.attr in ("log", "log_dict")
    return is_log and ast.unparse(node).startswith("self.")


def _may_log(call: ast.Call) -> bool:
    """Whether a call is the model's `log` rather than a logarithm."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("log", "log_dict"):
        return False
    return _is_of_self(call.func) or len(call.args) + len(call.keywords) > 1


def _names_in(call: ast.Call) -> set[str] | None:
    """Return the names in a call of `self.log` or `self.log_dict`; None if one is computed."""
    given: Mapping[str | None, ast.expr] = {each.arg: each.value for each in call.keywords}
    is_dict = isinstance(call.func, ast.Attribute) and call.func.attr == "log_dict"
    first = call.args[0] if call.args else given.get("dictionary" if is_dict else "name")
    keys = first.keys if is_dict and isinstance(first, ast.Dict) else [None if is_dict else first]
    names = {each.value if isinstance(each, ast.Constant) else None for each in keys}
    return {str(name) for name in names} if all(isinstance(name, str) for name in names) else None
