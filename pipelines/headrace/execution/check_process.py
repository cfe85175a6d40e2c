"""Process of `headrace check`: packs a few samples, trains on one batch, evaluates one.

It calls what runs call, with the recipe shortened to one rank and one step.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.batch.findings import Finding, Section, fail, ok, warn
from headrace.checkpoints.files import FINAL
from headrace.data.instantiate import Allowed, instantiate
from headrace.errors import HeadraceError, StepError
from headrace.evaluation.evaluation_plan import plan as plan_evaluation
from headrace.evaluation.predict import predictor_of
from headrace.evaluation.predictor import choose_device
from headrace.execution.check import FOUND, failed
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import write_manifest
from headrace.objects.store import is_remote, open_store
from headrace.packing.few_samples import pack_few
from headrace.packing.fields import describe
from headrace.packing.target import packed_dataset
from headrace.processes.identity import begin_child
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.gang_size import gang_size
from headrace.recipe.shortened import MOST_SAMPLES, shortened
from headrace.recipe.site import Tier
from headrace.shards.dataset import ShardedDataset
from headrace.shards.shard_locations import ShardSource
from headrace.steps.context import resolved
from headrace.training.first_step import FirstStep
from headrace.training.launch_records import NodeReady
from headrace.training.rank_failures import CORRECT, to_error
from headrace.training.training_plan import plan_training

_OUT_OF_BOUNDS = re.compile(r"Target -?\d+ is out of bounds")
"""PyTorch's words for a class index for which the last layer gives no score."""


class _Check:
    """The check of the recipe of a launch; `found` is what was found so far."""

    def __init__(self, node: NodeReady) -> None:
        self._node, self._run = node, RunFolder(Path(node.launch.run_folder))
        self._recipe, site = resolved(self._run)
        self._role = site.roles[self._recipe.train.role]
        nodes, ranks_per_node = gang_size(self._recipe, self._role)
        self._num_ranks = nodes * ranks_per_node
        tiers = (Tier(name="check", folder=str(self._run.path / "tier")),)
        self._site = site.model_copy(update={"folder": str(self._run.path), "all_tiers": tiers})
        self._short = shortened(self._recipe, self._num_ranks, choose_device("auto").type)
        self.found: list[Finding] = []

    def run(self) -> None:
        """Go through the stages up to the first that fails."""
        write_record(self._run.recipe, self._short)
        write_record(self._run.site, self._site)
        stage = "data"
        try:
            manifest = None if self._recipe.dataset is None else self._data()
            stage = "training"
            if (function := self._recipe.train.function) is not None:
                allowed = Allowed.of(self._recipe, self._site)
                instantiate(function, allowed, "train.function", partial=True)
            if self._recipe.model is not None:
                self._train(manifest)
                stage = "evaluation"
                if self._short.evaluate is not None:
                    self._evaluate(self._short.evaluate.variants[0])
        except HeadraceError as error:
            self.found.append(failed(stage, error))

    def _data(self) -> Manifest:
        """Pack a few samples, or find the packed dataset; return the manifest of all of them."""
        path, s3 = self._recipe.dataset_path, self._site.s3
        if path is None:
            location, manifest = pack_few(self._short, self._site, MOST_SAMPLES)
        else:
            location = open_store(path, s3).url
            manifest = packed_dataset(location, s3)
        folder = Path(location)
        if is_remote(location):
            folder = Path(self._node.dataset)
            write_manifest(folder, manifest)
        launch = self._node.launch.model_copy(update={"dataset": location})
        self._node = self._node.model_copy(update={"dataset": str(folder), "launch": launch})
        self.found.append(ok("samples", f"{manifest.num_samples:,}"))
        if path is None and manifest.quarantined:
            what = f"some of the samples tried cannot be read: {describe(manifest.quarantined)}"
            hint = "pack.max_quarantined is the share that packing tolerates."
            self.found.append(warn("data", what, hint))
        return manifest

    def _train(self, manifest: Manifest | None) -> None:
        """Train for one step; raise what training raises."""
        if manifest is not None:
            plan_training(self._recipe, self._role, manifest)
            for variant in self._recipe.evaluate.variants if self._recipe.evaluate else ():
                plan_evaluation(manifest.with_fold(self._recipe.data.fold), variant)
        step = FirstStep()
        failure = step.run(self._node)
        self.found += [ok(name, text) for name, text in step.shown.items()]
        if failure is None:
            self.found += self._without_gradient(tuple(step.missed))
            return
        hint = failure.hint.replace(CORRECT, "Correct it, and check again.")
        if _OUT_OF_BOUNDS.search(failure.what):
            number = len(manifest.classes) if manifest else 0
            known = f" of the {number} of the dataset" if number else ""
            hint = f"Give the last layer ({step.last_layer}) a score for each class{known}. {hint}"
        raise to_error(failure.model_copy(update={"hint": hint}), where="")

    def _without_gradient(self, names: Sequence[str]) -> Iterator[Finding]:
        """Yield the finding for parameters that no loss reaches: several ranks fail on them."""
        trainer, shown = self._recipe.trainer, ", ".join(names[:5])
        finds = trainer.ddp.find_unused_parameters
        if finds is None:
            finds = trainer.deterministic and self._num_ranks > 2
        fails = trainer.strategy == "ddp" and self._num_ranks > 1 and not finds
        if names:
            yield (fail if fails else warn)(
                "training",
                f"{len(names)} parameters get no gradient from the loss: {shown}"
                + ", …" * (len(names) > 5),
                "Use them in the loss, or freeze them by requires_grad_(False). With several "
                "ranks, trainer.ddp.find_unused_parameters: true tolerates them.",
            )

    def _evaluate(self, spec: EvaluateSpec) -> None:
        """Score a few samples with the checkpoint of the first step."""
        source = ShardSource.at(self._node.launch.dataset, self._site.s3)
        folder, fold = Path(self._node.dataset), self._short.data.fold
        split = ShardedDataset(folder, spec.split, source, fold)
        checkpoint = self._run.checkpoints / FINAL
        predictor = predictor_of(self._short, self._site, checkpoint, split, spec)
        predictor.predict(0, min(len(split), MOST_SAMPLES))


def main(arguments: list[str]) -> int:
    """Check the recipe of a launch; write what was found to the run's folder."""
    begin_child()
    node = read_record(Path(arguments[0]), NodeReady)
    if node is None:
        raise StepError(f"{arguments[0]} does not exist")
    check = _Check(node)
    handler = logging.Handler(logging.WARNING)

    def emit(record: logging.LogRecord) -> None:
        check.found.append(warn("training", record.getMessage(), ""))

    handler.emit = emit  # type: ignore[method-assign]
    logging.getLogger("headrace").addHandler(handler)
    check.run()
    found = Section(part="", findings=tuple(check.found))
    write_record(Path(node.launch.run_folder, FOUND), found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
