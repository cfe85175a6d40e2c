"""Fields of Airflow's connections, from any secrets backend of Airflow."""

from __future__ import annotations

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from headrace.errors import SecretError

_PLAIN = ("login", "host", "schema", "port")
_FIELDS = (*_PLAIN, "password")


def field_of(connection_id: str, field: str) -> str:
    """Return a field of a connection, or the value of that name in its `extra`.

    Side effects: Airflow masks the value in logs from now on, if it is a password or in `extra`.

    Raises:
        SecretError: There is no such connection, or it has no such field.
    """
    try:
        found = Connection.get(connection_id)
    except AirflowNotFoundException:
        raise SecretError(
            f"Airflow has no connection '{connection_id}', which the site's `secrets` name",
            "Create it under Admin, Connections, or in Airflow's secrets backend.",
        ) from None
    value = getattr(found, field) if field in _FIELDS else found.extra_dejson.get(field)
    if value is None:
        known = ", ".join((*_FIELDS, *found.extra_dejson))
        raise SecretError(f"Airflow's connection '{connection_id}' has no {field}", f"Has: {known}")
    if field not in _PLAIN:
        mask_secret(str(value))
    return str(value)
