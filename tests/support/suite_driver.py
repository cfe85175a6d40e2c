"""`python -m support.suite_driver STEP_DIR`: drives a suite of scripted trials, to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.files.layout import StepFolder
from headrace.steps.run import open_context
from headrace.suites.suite_step import run_suite
from support.scripted_trials import Listed, work

if __name__ == "__main__":
    context = open_context(StepFolder(Path(sys.argv[1])))
    suite = context.recipe.suite
    run_suite(context, Listed(*(suite.points if suite else ())), work())
