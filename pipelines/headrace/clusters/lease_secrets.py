"""The site's secrets in a lease: one file of its owner, beside the key of the Dask cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.errors import LeaseError
from headrace.files.atomic import read_bytes, write_json
from headrace.files.layout import LeaseFolder
from headrace.files.private import make_private

_OF_AIRFLOW = ("AIRFLOW", "_AIRFLOW", "HEADRACE_AIRFLOW")


@dataclass(frozen=True, kw_only=True)
class LeaseSecrets:
    """What a lease is given for its processes alone; never shown, nor saved but in its file."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables of its drivers, workers and ranks."""
    hidden: Collection[str] = ()
    """Variables of this process that what it starts does not inherit."""


@contextmanager
def handed_over(folder: LeaseFolder, secrets: LeaseSecrets) -> Iterator[None]:
    """Write the file from which the processes of a lease take its secrets.

    The block starts processes and submits jobs without them, and without Airflow's variables: batch
    systems keep the environment of a job, user code must not see the address of Airflow's database,
    and `headrace down` finds Airflow's processes by a mark. Nothing is left when the block fails.
    """
    hidden = {each for each in os.environ if each.startswith(_OF_AIRFLOW)} | {*secrets.hidden}
    kept = {name: os.environ.pop(name) for name in hidden & os.environ.keys()}
    try:
        if secrets.values:
            make_private(folder.tls, keeps=False)
            write_json(folder.secrets, dict(secrets.values))
        yield
    except BaseException:
        forget(folder)
        raise
    finally:
        os.environ.update(kept)


def secrets_of(folder: LeaseFolder) -> dict[str, str]:
    """The environment variables that a lease was given; none once it has ended.

    Raises:
        LeaseError: Their file is damaged.
    """
    try:
        found: dict[str, str] = json.loads(read_bytes(folder.secrets) or b"{}")
    except ValueError:  # whose text may quote the file
        raise LeaseError(f"{folder.secrets} is damaged", "Start another lease.") from None
    return found


def forget(folder: LeaseFolder) -> None:
    """Remove the file."""
    folder.secrets.unlink(missing_ok=True)
