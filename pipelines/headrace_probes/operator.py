"""Probes in Airflow: the parameters of their DAG, and the operator that makes their runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param

from headrace.recipe.base import MAX_PARALLEL
from headrace.recipe.load import load_site, parse
from headrace_airflow.dag_parts import check_choice, choice
from headrace_airflow.run_operators import PrepareRunOperator
from headrace_probes.probe_records import PARTS, ProbeOptions
from headrace_probes.report import RECIPE, overrides_for


def probe_params() -> dict[str, Param]:
    """Return the parameters of the DAG of probes."""
    return {
        "site": choice("sites", "Site", "Site whose machines are measured."),
        "role": Param(
            None,
            type=["null", "string"],
            pattern=r"^[A-Za-z0-9_-]+$",
            title="Role",
            description="Role of the site. Empty: gpu, or its first role.",
        ),
        "nodes": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=MAX_PARALLEL,
            title="Nodes",
            description="Empty: all of a gang, up to 2 of a pool.",
        ),
        "parts": Param(
            None,
            type=["null", "array"],
            items={"type": "string", "enum": list(PARTS)},
            examples=list(PARTS),
            title="Parts",
            description="Parts to measure. Empty: all.",
        ),
        "quick": Param(
            False, type="boolean", title="Quick", description="Small sizes: test that all works."
        ),
    }


class PrepareProbeOperator(PrepareRunOperator):
    """Makes the run of a probe, or finds the run that it made before."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(kind="probe", **kwargs)

    def _asked(self, params: Mapping[str, Any]) -> dict[str, Any]:
        asked = {"only": params["parts"] or PARTS, "role": params["role"] or ""}
        asked |= {name: params[name] for name in ("nodes", "quick")}
        options = parse(ProbeOptions, asked, "The probe")
        overrides = overrides_for(load_site(check_choice("sites", params["site"])), options)
        return {
            "recipe": RECIPE,
            "overrides": overrides,
            "options": options.model_dump(mode="json"),
        }
