"""The DAGs that come with headrace, as an Airflow DAG bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.base import BaseDagBundle

from headrace_airflow.dags_folder import dags_folder


class HeadraceDagBundle(BaseDagBundle):  # type: ignore[misc]
    """Bundle for Airflow's `dag_bundle_config_list`; takes no arguments of its own."""

    supports_versioning = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._folder = dags_folder()

    @property
    def path(self) -> Path:
        """Folder of the DAG files."""
        return self._folder

    def get_current_version(self) -> None:
        """None: the files are those of the installed package."""

    def refresh(self) -> None:
        """Nothing to fetch."""
