"""The step of a suite over several sites: its driver, on the control side."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from headrace.multi_site.driver import SitesDriver
from headrace.multi_site.site_link import SiteLink
from headrace.multi_site.sites import site_state
from headrace.runs.parts import sites_of
from headrace.runs.runs import open_run
from headrace.steps.context import StepContext
from headrace.suites.event_log import Journal
from headrace.suites.suite_step import outputs_of, owner_of, source_of


def run(context: StepContext) -> dict[str, Any]:
    """Run the trials of the recipe's suite at its sites.

    Returns and raises as `headrace.suites.suite_step.run`.
    """
    suite = open_run(context.spec.run_id)
    with ExitStack() as stack:
        states = []
        for name, each in sites_of(suite.folder).items():
            link = SiteLink(suite, name)
            stack.callback(link.close)
            states.append(site_state(each.site, suite.recipe, link))
        journal = stack.enter_context(Journal(context.run_folder, owner_of(context)))
        driver = SitesDriver(context, journal, source_of(context), states)
        driver.run()
    return outputs_of(driver.suite_state)
