"""The DAGs that come with headrace, as an Airflow DAG bundle."""

from __future__ import annotations

from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

from headrace_airflow.service import dags_folder


class HeadraceDagBundle(LocalDagBundle):  # type: ignore[misc]
    """Bundle for Airflow's `dag_bundle_config_list`; takes no arguments of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(path=str(dags_folder()), **kwargs)
