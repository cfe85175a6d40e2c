"""The suite step: all trials of a recipe, on the nodes of one lease."""

from __future__ import annotations

from typing import Any

from headrace.clusters.shared_calls import SharedCalls
from headrace.errors import StepCancelledError, SuiteFailedError
from headrace.states import StepState
from headrace.steps.context import StepContext
from headrace.suites.board import Board
from headrace.suites.driver import Driver, Work
from headrace.suites.journal import Journal
from headrace.suites.node_slots import capacity
from headrace.suites.source import Given, Source
from headrace.suites.trial import run_trial


def run(context: StepContext) -> dict[str, Any]:
    """Run the trials of the recipe's suite on the dataset of the input `dataset`, if it has one.

    Trials that have ended, in whatever attempt at this step, are not run again.

    Returns:
        `total`, `counts` of trials by state, and `best` and `best_value` where one is best.

    Raises:
        RecipeError: The suite cannot be used.
        SuiteFailedError: All trials have failed, or so many that it does not go on.
        StepCancelledError: Somebody asked it to stop, or cancelled all trials.
        LeaseEndsError: The lease ends first; another one goes on with it.
    """
    work = Work(dataset=context.dataset, run_trial=run_trial, capacity=capacity)
    return run_suite(context, source_of(context), work)


def source_of(context: StepContext) -> Source:
    """Where the trials of a suite come from."""
    recipe = context.recipe
    if recipe.suite is None or recipe.suite.search is None:
        return Given(recipe)
    from headrace.data.targets import Allowed
    from headrace.suites.proposed import Proposed
    from headrace.suites.search import Search

    search = Search(recipe, Allowed.of(recipe, context.site))
    return Proposed(recipe, search, context.run_folder)


def run_suite(context: StepContext, source: Source, work: Work) -> dict[str, Any]:
    """Run what a source gives; returns and raises as `run`."""
    with SharedCalls.open(context.lease_folder) as calls, _journal(context) as journal:
        driver = Driver(context, calls, journal, source, work)
        driver.run()
    return _outputs(driver.board)


def _journal(context: StepContext) -> Journal:
    return Journal(context.run_folder, f"{context.spec.key} in {context.lease_folder.lease_id}")


def _outputs(board: Board) -> dict[str, Any]:
    counts = {state: count for state, count in board.counts.items() if count}
    if counts.keys() == {StepState.CANCELLED.value}:
        raise StepCancelledError(f"All {len(board.rows)} trials were cancelled")
    if board.rows and not counts.keys() - _USELESS:
        raise SuiteFailedError(
            f"All {board.num_failed} trials have failed; {board.commonest_failure}",
            "See them all: headrace suite show. When the cause is corrected, have them run again "
            "by `headrace suite retry`.",
        )
    best = board.told_best
    found = {"best": best.trial.number, "best_value": best.objectives[0]} if best else {}
    return {"total": len(board.rows), "counts": counts, **found}


_USELESS = {
    state.value for state in StepState if state.is_final and state is not StepState.SUCCEEDED
}
