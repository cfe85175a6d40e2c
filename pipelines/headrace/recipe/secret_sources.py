"""Secrets of a site: names of environment variables, and where their values come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_SOURCE = rf"airflow:\S+\.[A-Za-z0-9_-]+|env:{_VARIABLE}|file:\S.*"


def _check(told: object) -> object:
    """Refuse all but sources; what stands there in place of one may be a secret, and is not shown.

    Sites are saved with every run.
    """
    if not isinstance(told, Mapping):
        raise ValueError("write VARIABLE: SOURCE, one a line")  # noqa: TRY004  pydantic's
    for name, source in told.items():
        if not isinstance(name, str) or not re.fullmatch(_VARIABLE, name):
            raise ValueError(f"'{name}' is no name of an environment variable")
        if not isinstance(source, str) or not re.fullmatch(_SOURCE, source):
            raise ValueError(
                f"the source of {name} is none of airflow:CONNECTION.FIELD, env:VARIABLE and "
                "file:PATH; a value is never written here"
            )
    return dict(told)


Secrets = Annotated[
    dict[str, str],
    BeforeValidator(_check),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": f"^{_VARIABLE}$"},
            "additionalProperties": {"type": "string", "pattern": f"^({_SOURCE})$"},
        }
    ),
]
"""Sources by the names of environment variables."""
