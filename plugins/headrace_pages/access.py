"""Permissions on headrace's pages: those of Airflow's auth manager on DAG runs.

The only module that imports Airflow, whose checks are not declared public.
"""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Query

from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.recipe.teams import Sites, sites_for
from headrace_airflow.airflow_api import DagRunAddress

DAG_ID = "headrace_train"
"""The right to read or trigger runs of this DAG is the right to read the pages, or act on them."""

reads = Depends(requires_access_dag("GET", DagAccessEntity.RUN, DAG_ID))
"""Dependency of endpoints that show data: 401 without a login, 403 without the permission."""

acts = Depends(requires_access_dag("POST", DagAccessEntity.RUN, DAG_ID))
"""Dependency of endpoints that change something."""

User = Annotated[BaseUser, Depends(get_user)]
"""Parameter of an endpoint: the user of the request."""


def visible_sites(user: User) -> Sites:
    """Return the sites whose runs the user may see; None for all.

    Users who may change Airflow's connections see the runs of all sites.
    """
    sees_all = get_auth_manager().is_authorized_connection(method="PUT", user=user)
    return None if sees_all else sites_for(user.get_name())


VisibleSites = Annotated[Sites, Depends(visible_sites)]
"""Parameter of an endpoint: sites whose runs the user may see."""


def _asker(user: User, sites: VisibleSites) -> str:
    return "" if sites is None else str(user.get_name())


Asker = Annotated[str, Depends(_asker)]
"""Parameter of an endpoint: user whose refused requests are shown; empty for all users."""


def check_site(site_name: str, visible: Sites) -> None:
    """Raise 403 if the user may not see runs of a site."""
    if visible is not None and site_name not in visible:
        what = f"Runs of site {site_name} are not shown to you"
        raise HTTPException(403, {"what": what, "hint": "Ask the site's owner for access."})


def _check_runs(
    sites: VisibleSites,
    names: Annotated[tuple[str, ...], Query(alias="id")] = (),
    dag_id: str = "",
    dag_run_id: str = "",
) -> None:
    if sites is None:
        return
    ledger = open_ledger()
    keys = [str(DagRunAddress(dag_id=dag_id, run_id=dag_run_id))]
    for name in names:
        if DagRunAddress.parse(name):
            keys.append(name)
        else:
            check_site(ledger.run(name.partition(":")[0]).site_name, sites)
    for record in filter(None, map(ledger.run_by_key, keys)):
        check_site(record.site_name, sites)


sees_runs = Depends(_check_runs)
"""Dependency of endpoints that show the requested runs or trials: 403 as above."""


def may_act(user: User) -> bool:
    """Whether the user may act at all."""
    return _may_trigger(user, DAG_ID)


MayAct = Annotated[bool, Depends(may_act)]
"""Parameter of an endpoint: whether the user may act."""


def check_acts_on(user: BaseUser, record: RunRecord) -> None:
    """Raise 403 if the user may not see a run, or not trigger runs of its DAG."""
    check_site(record.site_name, visible_sites(user))
    address = DagRunAddress.parse(record.owner)
    if address is not None and not _may_trigger(user, address.dag_id):
        raise HTTPException(403, f"You may not act on runs of DAG {address.dag_id}")


def secret_key() -> str:
    """Return the secret that only processes of the API server share."""
    return str(conf.get_mandatory_value("api", "secret_key"))


def _may_trigger(user: BaseUser, dag_id: str) -> bool:
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    entity = DagAccessEntity.RUN
    allowed = get_auth_manager().is_authorized_dag(
        method="POST", access_entity=entity, details=details, user=user
    )
    return bool(allowed)
