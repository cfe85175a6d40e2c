"""What a recipe can make of PyTorch, TorchMetrics and Lightning, and which arguments could do harm.

Each class that is allowed by its kind is found as a recipe would name it. Arguments whose names
tell of files, hosts or functions are listed here with the reason why they may stay; one that a new
version brings fails this test until somebody has judged it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest

from headrace.data.instantiate import Allowed, resolve
from headrace.errors import HeadraceError
from headrace.recipe.targets import uses

NOTHING_LISTED = Allowed(listed=())
RISKY = re.compile(
    r"path|dir$|file|ur[il]|host|port$|_fn|func|lambda|callable|hook|cpp|parser|config|registry"
    r"|profiler|^code|tokenizer|pretrained|weights_path|checkpoint|model_name|encoder$|decoder$"
)
PLACES = {
    "model": ("torch.nn", "lightning.pytorch.core"),
    "model.part": ("torch.nn", "torch.optim", "torchmetrics"),
    "trainer.callbacks[0]": ("lightning.pytorch.callbacks", "lightning.pytorch.cli"),
    "trainer.loggers[0]": ("lightning.pytorch.loggers",),
    "dataset.reader": ("torch.nn",),
    "evaluate.metrics.m": ("torchmetrics.segmentation", "torchmetrics.text", "torch.optim"),
    "evaluate.figures.f": ("torchmetrics.segmentation", "torch.optim"),
}
CALLS = "calls an object; a recipe can give it only what is allowed at that place"
PATHS = "a path, which must lie where the site allows outputs"
JUDGED = {
    "ASGD lambd": "a number",
    "CyclicLR scale_fn": CALLS,
    "DistributedDataParallel param_to_hook_all_reduce": "a parameter of the model",
    "LBFGS line_search_fn": "one of two names",
    "BackboneFinetuning lambda_func": CALLS,
    "LambdaCallback on_load_checkpoint": CALLS,
    "LambdaCallback on_save_checkpoint": CALLS,
    "LambdaInputTransformer transform_pred": CALLS,
    "LambdaLR lr_lambda": CALLS,
    "ModelCheckpoint dirpath": PATHS,
    "ModelCheckpoint filename": PATHS,
    "ModelPruning pruning_fn": "a name of a table of Lightning's, or as above: " + CALLS,
    "ModuleWrapper cpp_module": "holds an object; C++ modules have no name in a recipe",
    "MultiplicativeLR lr_lambda": CALLS,
    "Muon adjust_lr_fn": "one of two names",
    "OnExceptionCheckpoint dirpath": PATHS,
    "OnExceptionCheckpoint filename": PATHS,
    "SpikeDetection exclude_batches_path": PATHS,
    "StochasticWeightAveraging avg_fn": CALLS,
    "ThroughputMonitor batch_size_fn": CALLS,
    "ThroughputMonitor length_fn": CALLS,
    "Transformer custom_decoder": CALLS,
    "Transformer custom_encoder": CALLS,
    "TripletMarginWithDistanceLoss distance_function": CALLS,
    "CSVLogger save_dir": PATHS,
    "TensorBoardLogger save_dir": PATHS,
    "TensorBoardLogger sub_dir": PATHS,
}


@pytest.fixture(scope="module")
def allowed() -> dict[str, set[type]]:
    """Classes that a recipe may name at each place."""
    return {
        key: {found for package in packages for found in classes(key, package)}
        for key, packages in PLACES.items()
    }


def classes(key: str, package: str) -> Iterator[type]:
    for module in modules(package):
        for name in filter(str.isidentifier, dir(module)):
            try:
                (use,) = uses(key, {"_target_": f"{module.__name__}.{name}"})
                yield resolve(use, NOTHING_LISTED)
            except HeadraceError:
                continue


def modules(package: str) -> Iterator[ModuleType]:
    top = importlib.import_module(package)
    yield top
    for found in pkgutil.walk_packages(getattr(top, "__path__", ()), f"{package}."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    yield importlib.import_module(found.name)
                except ImportError:  # what it needs is not installed
                    continue


def test_only_classes_and_only_of_the_kind(allowed):
    assert all(isinstance(found, type) for each in allowed.values() for found in each)
    assert allowed["model"] == allowed["dataset.reader"] == set()
    assert allowed["evaluate.figures.f"] == set()
    metrics = {found.__name__ for found in allowed["evaluate.metrics.m"]}
    assert {"MeanIoU", "Perplexity"} < metrics
    assert not metrics & {"BERTScore", "InfoLM", "ROUGEScore", "AdamW"}
    loggers = {found.__name__ for found in allowed["trainer.loggers[0]"]}
    assert loggers == {"CSVLogger", "TensorBoardLogger"}
    names = {found.__name__ for found in allowed["trainer.callbacks[0]"]}
    assert "EarlyStopping" in names
    assert "SaveConfigCallback" not in names
    parts = {found.__name__ for found in allowed["model.part"]}
    assert {"Linear", "CrossEntropyLoss", "AdamW", "CosineAnnealingLR", "MeanMetric"} < parts


def test_arguments_that_could_do_harm_are_judged(allowed):
    risky = {
        f"{found.__name__} {parameter}"
        for each in allowed.values()
        for found in each
        for parameter in inspect.signature(found).parameters
        if RISKY.search(parameter)
    }
    assert risky - JUDGED.keys() == set()
    assert {"ModelCheckpoint dirpath", "CSVLogger save_dir", "LambdaLR lr_lambda"} < risky
