"""Restarts of training processes inside a lease: counted as attempts are, progress included."""

from __future__ import annotations

from headrace.checkpoints import files as checkpoints
from headrace.errors import WorkerLostError
from headrace.recipe.recipe import RetryPolicy
from headrace.steps.context import StepContext
from headrace.steps.retry_policy import Attempt, decide


class Restarts:
    """The restarts of a step and their `causes`; `train.max_restarts` of them without progress."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._policy = RetryPolicy(max_failures=context.recipe.train.max_restarts + 1)
        self._began_with = self._kept()
        self._attempts: list[Attempt] = []
        self.causes: list[str] = []

    def may_follow(self, error: WorkerLostError) -> bool:
        """Whether the processes are started again; if so, that is noted, with the cause."""
        kept = max(self._kept() - self._began_with, 0.0)
        self._attempts.append(Attempt(failure_class=error.failure_class, kept=kept))
        decision = decide(self._attempts, self._policy)
        if self._policy.max_failures == 1 or not decision.again:
            return False
        self.causes.append(error.what)
        self._context.restarted(error.what)
        return True

    def _kept(self) -> float:
        has_own = self._context.recipe.model is None
        return checkpoints.progress_in(self._context.run_folder.checkpoints, own_names=has_own)
