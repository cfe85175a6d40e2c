"""Dask's scheduler in a lease: settings, address, keys, and pages that need the lease's link.

Dask's dashboard is loaded when it is first opened: its libraries take half a second of a core and
30 MB in each host, and most leases end without any visitor.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import secrets
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import dask
import psutil
from distributed import Scheduler, SchedulerPlugin
from distributed.security import Security
from distributed.utils import get_ip, get_ip_interface
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.netutil import bind_sockets
from tornado.routing import Router
from tornado.web import Application, RequestHandler

from headrace.clusters.lease_records import LeaseSpec, service_variables
from headrace.clusters.node_marks import NodeLine
from headrace.errors import LeaseError
from headrace.files.atomic import write_bytes
from headrace.files.layout import LeaseFolder
from headrace.files.lines import append_line
from headrace.files.sharing import private_folder_mode
from headrace.site_secrets import secrets_of

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
"""Address that only this machine can reach."""

NODE = "NODE"
"""Resource of each worker, of amount 1: a call that takes the whole node."""

SLOT = "SLOT"
"""Resource of each worker, of amount `threads_per_node`: one item of a map."""

DEMAND = "headrace-demand"
"""Key of the scheduler's metadata: nodes that each client requests from a pool."""

WAITS = "headrace-waits"
"""Key of the scheduler's metadata: what a pool's nodes wait for in a queue; empty or missing."""

THREADS = frozenset(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"))
"""Environment variables: threads of numeric libraries in a rank."""

PAGES = "pages"
"""Service of the scheduler that serves its pages to programs with the lease's key."""

LEFT = "headrace-left"
"""Key of the scheduler's metadata: seconds after which nodes of a pool are replaced, by name; 0 if
their machine is about to be taken away. Work there continues until then."""

_CONFIG: dict[str, Any] = {
    # training starts its own processes below a worker
    "distributed.worker.daemon": False,
    # steps retry lost work themselves, since they know how
    "distributed.scheduler.allowed-failures": 0,
    # a task that holds the GIL for long does not mean a dead worker
    "distributed.scheduler.worker-ttl": None,
    # a node whose worker has not come back by then is given up, and replaced by `keep_nodes`
    "distributed.deploy.lost-worker-timeout": "10s",
    "distributed.admin.tick.limit": "60s",
    "distributed.comm.timeouts.connect": "30s",
    # workers serve no pages: they are not used, and every account of their machine could read them
    "distributed.worker.http.routes": [],
    # Dask's default without `proxy`, which would contact other machines for visitors
    "distributed.scheduler.http.routes": [
        *(f"distributed.http.scheduler.{name}" for name in ("prometheus", "info", "json")),
        *(f"distributed.http.{name}" for name in ("health", "statics")),
    ],
    # Dask's profiler inspects all threads a hundred times a second, which on Python 3.11 can hang a
    # worker for ever: https://github.com/dask/distributed/issues/8616
    "distributed.worker.profile.enabled": False,
    # ranks inherit a worker's environment: Dask's would return their memory to the kernel at each
    # free, which makes training on CPUs twice as slow
    "distributed.nanny.pre-spawn-environ": {},
}
_REFUSED = 403
_CLOCKS_DIFFER = datetime.timedelta(days=1)
_OUTLIVES_ANY_LEASE = datetime.timedelta(days=3650)


def configure(spec: LeaseSpec) -> None:
    """Set Dask's configuration, and add the lease's code to the module path, at its end."""
    sys.path += [each for each in map(os.path.expanduser, spec.code) if each not in sys.path]
    dask.config.set(_CONFIG)
    logging.getLogger("distributed").setLevel(logging.WARNING)  # its import sets another level


def prepare(folder: LeaseFolder, spec: LeaseSpec) -> None:
    """Set Dask's configuration and the environment that workers and ranks inherit."""
    configure(spec)
    # always set: otherwise Dask would set the threads of numeric libraries to 1
    threads = dict.fromkeys(THREADS, str(spec.role.threads_per_rank))
    os.environ.update(threads | spec.role.env | secrets_of(folder))


def worker_options(folder: LeaseFolder, spec: LeaseSpec) -> dict[str, Any]:
    """Return the options of all workers; put the addresses of services into the environment.

    Modules of the lease's `preload` are loaded before a worker starts. One thread is free for short
    calls while a long one occupies the node.
    """
    os.environ.update(service_variables(folder))
    return {
        "nthreads": spec.role.threads_per_node + 1,
        "memory_limit": 0,
        "resources": {NODE: 1, SLOT: spec.role.threads_per_node},
        "preload": ["headrace.clusters.cancellable_call", *spec.preload],
        "silence_logs": logging.WARNING,
        "dashboard": False,
        "security": security(folder),
        "protocol": "tls",
    }


def demand(scheduler: Scheduler) -> int:
    """Return the nodes that the connected clients request together."""
    asked = scheduler.task_metadata.get(DEMAND, {})
    return sum(int(count) for client, count in asked.items() if client in scheduler.clients)


def address(interface: str | None) -> str:
    """Return the address at which other nodes reach this one; by default of the default route."""
    if interface is None:
        return _default_address()
    try:
        return str(get_ip_interface(interface))
    except ValueError as error:
        raise LeaseError(
            f"The node has no network interface '{interface}': {error}",
            "Correct `batch.interface` of the role in the site.",
        ) from error


def _default_address() -> str:
    """Return the address of the default route; without one, of the only reachable interface.

    The host's name does not help: on Debian it stands for 127.0.1.1.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a missing route, which is handled here
        found = str(get_ip())
    if not ipaddress.ip_address(found).is_loopback:
        return found
    others = {
        name: each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET and not ipaddress.ip_address(each.address).is_loopback
    }
    if len(others) > 1:
        listed = ", ".join(f"{name} ({address})" for name, address in sorted(others.items()))
        raise LeaseError(
            f"The node has no default route, and several network interfaces: {listed}",
            "Name the one that other nodes reach as `batch.interface` of the role in the site.",
        )
    return next(iter(others.values()), found)


class LeaseScheduler(Scheduler):  # type: ignore[misc]
    """A Dask scheduler whose pages are all below a random folder, which is part of its link.

    Other accounts of the machine reach its port, and a browser cannot present a lease's key. The
    link is in files that only the lease's owner may read. Programs with the key find the same
    pages by TLS at the scheduler's own address: service `pages` of its identity.
    """

    def __init__(self, **options: Any) -> None:
        self._secret = secrets.token_hex(32)
        pages = {"dashboard": False, "dashboard_address": f"{LOOPBACK}:0"}
        super().__init__(**{**options, **pages})

    @property
    def dashboard_url(self) -> str:
        """Link of the dashboard; it works on the scheduler's own machine, or by an SSH tunnel."""
        return f"http://{LOOPBACK}:{self.http_server.port}/{self._secret}/status"

    def start_http_server(self, *arguments: Any, **options: Any) -> None:
        """Pass all requests through the gate; called while the scheduler is made."""
        super().start_http_server(*arguments, **options)
        self.http_server.request_callback = _Gate(self.http_application, self._secret)
        self.http_application.add_application(_Unopened(self))

    async def start_unsafe(self) -> LeaseScheduler:
        """Also serve the pages to programs with the key, where workers reach the scheduler."""
        await super().start_unsafe()
        context = self.security.get_listen_args("scheduler")["ssl_context"]
        server: Any = HTTPServer(self.http_server.request_callback, ssl_options=context)
        sockets = bind_sockets(0, self.ip)
        server.add_sockets(sockets)
        server.port = sockets[0].getsockname()[1]
        self.services[PAGES] = server  # closed with the scheduler
        return self


class _Gate(Router):
    """Passes a request whose path begins with the secret, and removes that.

    Dask's links are relative: they lead back here with any prefix, as behind Airflow's pages.
    """

    def __init__(self, pages: Application, secret: str) -> None:
        self._pages = pages
        self._secret = secret.encode()
        self._refusal = Application([(".*", _Refusal)])

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        shown, _, page = request.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(shown.encode(), self._secret):
            return self._refusal.find_handler(request, **options)
        request.path = f"/{page}"
        return self._pages.find_handler(request, **options)


class _Refusal(RequestHandler):
    """Says how to find the link."""

    def prepare(self) -> None:
        self.set_status(_REFUSED)
        self.set_header("Content-Type", "text/plain")
        self.finish("This dashboard opens by its own link; its owner finds it: headrace lease list")


class _Unopened(Application):
    """Replaces Dask's dashboard until the first request for a page outside the scheduler's own."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        from distributed.dashboard.scheduler import connect

        pages = self._scheduler.http_application
        pages.applications.remove(self)
        connect(pages, self._scheduler.http_server, self._scheduler)
        return pages.find_handler(request, **options)


def security(folder: LeaseFolder) -> Security:
    """Return the TLS settings of the lease's Dask cluster; access requires its key."""
    key, certificate = str(folder.key), str(folder.certificate)
    roles = ("scheduler", "worker", "client")
    return Security(
        require_encryption=True,
        tls_ca_file=certificate,
        **{f"tls_{role}_key": key for role in roles},
        **{f"tls_{role}_cert": certificate for role in roles},
    )


def make_keys(folder: LeaseFolder) -> Security:
    """Make key and certificate of a lease; all who can read its folder can use the lease.

    Side effects: writes both into the lease's `tls` folder, which only its owner may read.
    """
    # imported here: clients and workers do not need it, and it is slow to load
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    # not Dask's `Security.temporary`: a node whose clock is behind would refuse the certificate
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "headrace-lease")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)  # self-signed: the lease's processes trust only it
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _OUTLIVES_ANY_LEASE)
        .sign(key, hashes.SHA256())
    )
    folder.tls.mkdir(mode=private_folder_mode(folder.path), exist_ok=True)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_bytes(folder.key, secret)
    write_bytes(folder.certificate, certificate.public_bytes(Encoding.PEM))
    return security(folder)


class NodeTimes(SchedulerPlugin):  # type: ignore[misc]
    """Adds a line to `nodes.jsonl` for each change of a node.

    `held` are names of nodes that the lease holds until its end, `since` a time in seconds since
    the epoch. `asked` returns when the job of a node was submitted; None for a node without its
    own job, which ends with its worker.
    """

    def __init__(
        self,
        folder: LeaseFolder,
        held: Iterable[str] = (),
        since: float = 0.0,
        asked: Callable[[str], float | None] = lambda _name: None,
    ) -> None:
        self._folder = folder
        self._held = frozenset(held)
        self._asked = asked
        self._there: set[str] = set()
        self._names: dict[str, str] = {}
        for name in sorted(self._held):
            self.begin(name, since)

    def begin(self, name: str, at: float) -> None:
        """Record a new node."""
        if name not in self._there:
            self._there.add(name)
            self._write(NodeLine(event="began", name=name, at=at, asked_at=self._asked(name)))

    def end(self, name: str) -> None:
        """Record the end of a node, if it was recorded."""
        if name in self._there:
            self._there.remove(name)
            self._write(NodeLine(event="ended", name=name))

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Record that a node's worker has joined."""
        state = scheduler.workers[worker]
        name = self._names[worker] = str(state.name)
        self.begin(name, time.time())
        self._write(NodeLine(event="joined", name=name, host=state.host))

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        """Record the end of a node that ends with its worker."""
        name = self._names.pop(worker, "")
        if name not in self._held and self._asked(name) is None:
            self.end(name)

    def _write(self, line: NodeLine) -> None:
        try:
            append_line(self._folder.nodes, line.model_dump_json(exclude_none=True))
        except OSError as error:
            logger.warning("Event '%s' of %s is not recorded: %s", line.event, line.name, error)
