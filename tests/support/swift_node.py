"""OpenStack Swift with one disk, its four servers and its S3 API in one process.

Run by Debian's Python, which has the package `python3-swift`:
`/usr/bin/python3 swift_node.py FOLDER ACCOUNT:USER SECRET` prints the endpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eventlet
import eventlet.wsgi
from swift.common import storage_policy, utils
from swift.common.http_protocol import SwiftHttpProtocol
from swift.common.ring import RingBuilder
from swift.common.wsgi import loadapp

KINDS = ("account", "container", "object")
FILTERS = (
    "catch_errors", "gatekeeper", "cache", "listing_formats", "bulk", "s3api", "tempauth", "copy",
    "slo", "dlo", "versioned_writes", "symlink",
)  # fmt: skip
CLUSTER = (
    "[swift-hash]\nswift_hash_path_suffix = tests\n[storage-policy:0]\nname = one\ndefault = yes"
)


class EmptyCache:
    """A memcached that has evicted everything; Swift requires one for its accounts' tokens."""

    def get(self, *_: object, **__: object) -> None:
        """Return None, since nothing is kept."""

    set = delete = get


def cache(*_: object, **__: object) -> Callable[[Any], Any]:
    """Return a filter that gives each request that cache."""

    def with_cache(app: Any) -> Any:
        return lambda environ, start: app({**environ, "swift.cache": EmptyCache()}, start)

    return with_cache


def settings(folder: Path, kind: str, login: str, secret: str) -> str:
    """Return the configuration of one server."""
    lines = ["[DEFAULT]", f"swift_dir = {folder}", f"devices = {folder}", "mount_check = false"]
    filters = FILTERS if kind == "proxy" else ()
    lines += ["[pipeline:main]", f"pipeline = {' '.join(filters)} {kind}-server"]
    lines += [f"[app:{kind}-server]", f"use = egg:swift#{kind}", "account_autocreate = true"]
    added = {
        "tempauth": f"user_{login.replace(':', '_')} = {secret} .admin",
        "versioned_writes": "allow_object_versioning = true",
    }
    for name in filters:
        origin = f"use = egg:swift#{name}"
        if name == "cache":
            origin = "paste.filter_factory = swift_node:cache"
        lines += [f"[filter:{name}]", origin, added.get(name, "")]
    return "\n".join(lines)


def serve(socket: Any, app: Any) -> None:
    """Serve as Swift's own `run_server` does."""
    log, protocol = utils.NullLogger(), SwiftHttpProtocol
    eventlet.wsgi.server(
        socket, app, log, protocol=protocol, capitalize_response_headers=False, socket_timeout=60
    )


def main(folder: Path, login: str, secret: str) -> None:
    """Serve until the process is ended."""
    eventlet.patcher.monkey_patch()
    utils.SWIFT_CONF_FILE = str(folder / "swift.conf")
    Path(utils.SWIFT_CONF_FILE).write_text(CLUSTER)
    storage_policy.reload_storage_policies()
    (folder / "disk").mkdir()
    sockets = {kind: eventlet.listen(("127.0.0.1", 0)) for kind in (*KINDS, "proxy")}
    for kind in KINDS:
        builder = RingBuilder(part_power=4, replicas=1, min_part_hours=1)
        port = sockets[kind].getsockname()[1]
        place = {"region": 1, "zone": 0, "ip": "127.0.0.1", "port": port}
        builder.add_dev({"id": 0, "device": "disk", "weight": 1, "meta": "", **place})
        builder.rebalance()
        builder.get_ring().save(str(folder / f"{kind}.ring.gz"))
    threads = []
    for kind, socket in sockets.items():
        file = folder / f"{kind}.conf"
        file.write_text(settings(folder, kind, login, secret))
        threads.append(eventlet.spawn(serve, socket, loadapp(str(file))))
    print(f"http://127.0.0.1:{sockets['proxy'].getsockname()[1]}", flush=True)
    for thread in threads:
        thread.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
