"""The operator that makes the run of a probe, of which the DAG has parameters of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.probes.records import PARTS, ProbeOptions
from headrace.recipe.load import load_site
from headrace.runs.probes import RECIPE, overrides_for
from headrace_airflow.dag_parts import check_choice
from headrace_airflow.run_operators import PrepareRunOperator


class PrepareProbeOperator(PrepareRunOperator):
    """Makes the run of a probe, or finds the one it made before."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(kind="probe", **kwargs)

    def _asked(self, params: Mapping[str, Any]) -> dict[str, Any]:
        options = ProbeOptions(
            only=params["parts"] or PARTS,
            role=params["role"] or "",
            nodes=params["nodes"],
            quick=params["quick"],
        )
        overrides = overrides_for(load_site(check_choice("sites", params["site"])), options)
        return {"recipe": RECIPE, "overrides": overrides, "probe": options}
