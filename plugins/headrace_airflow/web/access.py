"""Who may see headrace's pages and act on them: as Airflow's auth manager says of DAG runs.

The one module that imports Airflow, whose checks are not declared public.
"""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException

DAG_ID = "headrace_train"
"""Whoever may read or trigger runs of this DAG may read the pages, or act on them."""

reads = Depends(requires_access_dag("GET", DagAccessEntity.RUN, DAG_ID))
"""Dependency of endpoints that show something: 401 without a login, 403 without the permission."""

acts = Depends(requires_access_dag("POST", DagAccessEntity.RUN, DAG_ID))
"""Dependency of endpoints that change something."""

User = Annotated[BaseUser, Depends(get_user)]
"""Parameter of an endpoint: who asks."""


def may_act(user: User) -> bool:
    """Whether who asks may act at all."""
    return _may_trigger(user, DAG_ID)


MayAct = Annotated[bool, Depends(may_act)]
"""Parameter of an endpoint: whether who asks may act."""


def check_acts_on(user: BaseUser, dag_id: str) -> None:
    """Refuse (403) who may not trigger runs of the DAG that a run belongs to."""
    if not _may_trigger(user, dag_id):
        raise HTTPException(403, f"You may not act on runs of DAG {dag_id}")


def secret_key() -> str:
    """What all processes of the API server share, and nobody else knows."""
    return str(conf.get_mandatory_value("api", "secret_key"))


def _may_trigger(user: BaseUser, dag_id: str) -> bool:
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    entity = DagAccessEntity.RUN
    allowed = get_auth_manager().is_authorized_dag(
        method="POST", access_entity=entity, details=details, user=user
    )
    return bool(allowed)
