"""Migrations of the ledger: bring its schema to the revision that this release uses.

Kept apart from the rest because Alembic takes a while to import and is needed only once.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

_FOLDER = Path(__file__).parent


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Run the migrations that are missing, inside the connection's transaction.

    Args:
        connection: The ledger.
        revision: The last one; that of this release when left out.
    """
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def revisions() -> tuple[str, ...]:
    """Revisions that this release knows, newest first."""
    script = ScriptDirectory.from_config(_config())
    return tuple(revision.revision for revision in script.walk_revisions())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
