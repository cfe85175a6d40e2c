"""The kind of step `probe`, which headrace finds by an entry point."""

from __future__ import annotations

from typing import Any

from headrace.steps.context import StepContext
from headrace.steps.step_kinds import StepOptions
from headrace_probes.probe_records import ProbeOptions
from headrace_probes.report import write_probe_report


class ProbeKind:
    """Measures the nodes of a lease; see `headrace.steps.step_kinds.StepKind`."""

    options = ProbeOptions

    def run(self, context: StepContext) -> dict[str, Any]:
        """See `probe_step`."""
        from headrace_probes.probe_step import run  # Dask takes half a second

        return run(context)

    def words(self, options: StepOptions) -> tuple[str, ...]:
        """Return the options of `headrace probe`."""
        return ProbeOptions.model_validate(options).words

    def report(self, run_id: str) -> None:
        """Write `report.html`."""
        write_probe_report(run_id)


PROBE = ProbeKind()
