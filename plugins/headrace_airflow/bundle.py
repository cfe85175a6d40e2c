"""headrace's own DAGs, as an Airflow DAG bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

from headrace.recipe.load import available
from headrace_airflow.service import dags_folder

LOOKS_EVERY_S = 5
"""Airflow itself looks at most this often, see `[dag_processor] bundle_refresh_check_interval`."""


class HeadraceDagBundle(LocalDagBundle):  # type: ignore[misc]
    """Bundle for Airflow's `dag_bundle_config_list`; needs no arguments of its own.

    The form of its DAGs offers the existing recipes and sites. When these change, the DAG processor
    is asked to read the DAGs again at once.
    """

    def __init__(self, *, refresh_interval: int = LOOKS_EVERY_S, **kwargs: Any) -> None:
        super().__init__(path=str(dags_folder()), refresh_interval=refresh_interval, **kwargs)
        self._offered = _offered()

    def refresh(self) -> None:
        """Request a new read if files have changed; called every `refresh_interval` seconds."""
        offered = _offered()
        if offered == self._offered:
            return
        self._offered = offered
        # only the DAG processor may use Airflow's database, and tasks load bundles, too
        from airflow.models.dagbag import DagPriorityParsingRequest
        from airflow.utils.session import create_session

        with create_session() as session:
            for file in self.path.glob("headrace_*.py"):
                session.add(DagPriorityParsingRequest(self.name, file.name))


def _offered() -> dict[Path, int]:
    """Return the files of all recipes and sites, with their times of change in ns."""
    files = [file for kind in ("recipes", "sites") for file in available(kind).values()]
    return {file: file.stat().st_mtime_ns for file in files if file.exists()}
