"""The DAGs that come with headrace, as an Airflow DAG bundle."""

from __future__ import annotations

from pathlib import Path

from airflow.dag_processing.bundles.base import BaseDagBundle

from headrace_airflow.service_settings import dags_folder


class HeadraceDagBundle(BaseDagBundle):  # type: ignore[misc]
    """Bundle for Airflow's `dag_bundle_config_list`; takes no arguments of its own."""

    supports_versioning = False

    @property
    def path(self) -> Path:
        """Folder of the DAG files."""
        return dags_folder()

    def get_current_version(self) -> None:
        """None: the files are those of the installed package."""

    def refresh(self) -> None:
        """Nothing to fetch."""
