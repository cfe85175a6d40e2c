"""headrace's DAGs, and those of a user's folder, as Airflow DAG bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

from headrace.recipe.load import available
from headrace_airflow.service import dags_folder

LOOKS_EVERY_S = 5
"""Airflow itself looks at most this often, see `[dag_processor] bundle_refresh_check_interval`."""


class HeadraceDagBundle(LocalDagBundle):  # type: ignore[misc]
    """Bundle for Airflow's `dag_bundle_config_list`: headrace's DAGs, or those of a folder.

    The form of its DAGs offers the existing recipes and sites. When these or the DAG files change,
    the DAG processor is asked to read the DAGs again at once.
    """

    def __init__(
        self, *, path: str = "", refresh_interval: int = LOOKS_EVERY_S, **kwargs: Any
    ) -> None:
        path = path or str(dags_folder())
        super().__init__(path=path, refresh_interval=refresh_interval, **kwargs)
        self._offered = self._changed_at()

    def refresh(self) -> None:
        """Request a new read if files have changed; called every `refresh_interval` seconds."""
        offered = self._changed_at()
        if offered == self._offered:
            return
        self._offered = offered
        # only the DAG processor may use Airflow's database, and tasks load bundles, too
        from airflow.models.dagbag import DagPriorityParsingRequest
        from airflow.utils.session import create_session

        with create_session() as session:
            for file in self.path.rglob("*.py"):
                place = str(file.relative_to(self.path))
                session.add(DagPriorityParsingRequest(self.name, place))

    def _changed_at(self) -> dict[Path, int]:
        """Return recipes, sites and DAG files, with their times of change in ns."""
        files = [file for kind in ("recipes", "sites") for file in available(kind).values()]
        files += self.path.rglob("*.py")
        return {file: file.stat().st_mtime_ns for file in files if file.exists()}
