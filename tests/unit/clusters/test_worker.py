"""The worker of a node."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import pytest

from headrace.clusters.scheduler import make_keys
from headrace.clusters.worker import open_node
from headrace.files.layout import SiteFolder
from headrace.recipe.site import Role
from support.leases import lease_spec


@pytest.mark.parametrize("start_timeout", [1.0, 2.0])
def test_a_worker_has_the_time_of_its_role_to_start(tmp_path: Path, start_timeout: float):
    """Imports from a slow file system took more than Dask was given, and `start_timeout` said."""
    folder = SiteFolder(tmp_path).lease("demo-1")
    role = Role(kind="gang", backend="local", nodes=1, start_timeout=start_timeout)
    spec = lease_spec(folder, role)
    folder.path.mkdir(parents=True)
    make_keys(folder)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tls://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimeoutError, match=re.escape(f"timed out after {start_timeout:g}s")):
            asyncio.run(open_node(folder, spec, 0, address))
