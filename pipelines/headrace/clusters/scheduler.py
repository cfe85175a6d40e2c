"""Dask's scheduler in a lease: settings, address, keys, and pages that need the lease's link.

Dask's dashboard is loaded when somebody opens it: its libraries take half a second of a core and
30 MB in each host, and most leases end before anybody has looked.
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

from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.node_marks import NodeLine
from headrace.errors import LeaseError
from headrace.files.atomic import write_bytes
from headrace.files.layout import LeaseFolder
from headrace.files.lines import append_line
from headrace.files.sharing import private_folder_mode
from headrace.site_secrets import secrets_of

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
"""Address that this machine alone can reach."""

NODE = "NODE"
"""Resource of which each worker has one: a call that takes the whole node."""

SLOT = "SLOT"
"""Resource of which each worker has `threads_per_node`: one item of a map."""

DEMAND = "headrace-demand"
"""Key of the scheduler's metadata: nodes that each client asks a pool for."""

WAITS = "headrace-waits"
"""Key of the scheduler's metadata: what a pool's nodes wait for in a queue; empty or missing."""

THREADS = frozenset(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"))
"""Environment variables: threads of numeric libraries in a rank."""

PAGES = "pages"
"""Service of the scheduler that shows its pages to who has the key of the lease."""

LEFT = "headrace-left"
"""Key of the scheduler's metadata: seconds after which nodes of a pool are replaced, by name; 0 of
those whose machine is about to be taken away. What runs there goes on as long as they last."""

_CONFIG: dict[str, Any] = {
    # training starts processes of its own below a worker
    "distributed.worker.daemon": False,
    # work whose worker died is tried again by those who know how, not blindly
    "distributed.scheduler.allowed-failures": 0,
    # a task that holds the GIL for long is no dead worker
    "distributed.scheduler.worker-ttl": None,
    # a node whose worker is not back by then is given up, and replaced by `keep_nodes`
    "distributed.deploy.lost-worker-timeout": "10s",
    "distributed.admin.tick.limit": "60s",
    "distributed.comm.timeouts.connect": "30s",
    # a worker has no pages: nobody looks at them, and every account of its machine could
    "distributed.worker.http.routes": [],
    # all that Dask has by default but `proxy`, which would ask other machines for who looks
    "distributed.scheduler.http.routes": [
        *(f"distributed.http.scheduler.{name}" for name in ("prometheus", "info", "json")),
        *(f"distributed.http.{name}" for name in ("health", "statics")),
    ],
    # Dask's profiler looks at all threads a hundred times a second, which on Python 3.11 halts a
    # worker for ever now and then: https://github.com/dask/distributed/issues/8616
    "distributed.worker.profile.enabled": False,
    # ranks take a worker's environment over: Dask would have their memory given back to the kernel
    # at each free, which makes training on CPUs twice as slow
    "distributed.nanny.pre-spawn-environ": {},
}
_REFUSED = 403
_CLOCKS_DIFFER = datetime.timedelta(days=1)
_OUTLIVES_ANY_LEASE = datetime.timedelta(days=3650)


def configure(spec: LeaseSpec) -> None:
    """Set Dask's configuration, and find modules of the lease's code, after all others."""
    sys.path += [each for each in map(os.path.expanduser, spec.code) if each not in sys.path]
    dask.config.set(_CONFIG)
    logging.getLogger("distributed").setLevel(logging.WARNING)  # its import sets another level


def prepare(folder: LeaseFolder, spec: LeaseSpec) -> None:
    """Set Dask's configuration and the environment that workers and ranks take over."""
    configure(spec)
    # named always: Dask would set the threads of numeric libraries to 1 otherwise
    told = dict.fromkeys(THREADS, str(spec.role.threads_per_rank))
    os.environ.update(told | spec.role.env | secrets_of(folder))


def worker_options(folder: LeaseFolder, spec: LeaseSpec) -> dict[str, Any]:
    """What all workers are started with.

    Modules of the lease's `preload` are loaded before a worker starts. One thread is free for short
    calls, whatever long one takes the node.
    """
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
    """Nodes that the connected clients ask for together; those of gone clients do not count."""
    asked = scheduler.task_metadata.get(DEMAND, {})
    return sum(int(count) for client, count in asked.items() if client in scheduler.clients)


def address(interface: str | None) -> str:
    """Address by which other nodes reach this one, by default that of the default route."""
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
    """Address of the default route; without one, of the only interface that others can reach.

    A name is no help: Debian makes a host's own name stand for 127.0.1.1.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a missing route, which is seen to here
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
    """A Dask scheduler whose pages all lie below a random folder, which is in its link.

    Other accounts of the machine reach its port, and a browser can show no key of a lease. The
    link is in files that the lease's owner alone may read. Programs that have the key find the same
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
        """Have all requests pass the gate; called while the scheduler is made."""
        super().start_http_server(*arguments, **options)
        self.http_server.request_callback = _Gate(self.http_application, self._secret)
        self.http_application.add_application(_Unopened(self))

    async def start_unsafe(self) -> LeaseScheduler:
        """Show the pages to who has the key, too, wherever workers can reach the scheduler."""
        await super().start_unsafe()
        context = self.security.get_listen_args("scheduler")["ssl_context"]
        server: Any = HTTPServer(self.http_server.request_callback, ssl_options=context)
        sockets = bind_sockets(0, self.ip)
        server.add_sockets(sockets)
        server.port = sockets[0].getsockname()[1]
        self.services[PAGES] = server  # closed with the scheduler
        return self


class _Gate(Router):
    """Lets a request pass whose path begins with the secret, less that: Dask's links are relative.

    So they lead back here whatever else stands before them, as behind Airflow's pages.
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
    """Says where the link is."""

    def prepare(self) -> None:
        self.set_status(_REFUSED)
        self.set_header("Content-Type", "text/plain")
        self.finish("This dashboard opens by its own link; its owner finds it: headrace lease list")


class _Unopened(Application):
    """Stands for Dask's dashboard until the first page that the scheduler itself does not have."""

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
    """How to talk to the lease's Dask cluster; nobody gets in without its key."""
    key, certificate = str(folder.key), str(folder.certificate)
    roles = ("scheduler", "worker", "client")
    return Security(
        require_encryption=True,
        tls_ca_file=certificate,
        **{f"tls_{role}_key": key for role in roles},
        **{f"tls_{role}_cert": certificate for role in roles},
    )


def make_keys(folder: LeaseFolder) -> Security:
    """Make key and certificate of a lease; whoever can read its folder can use the lease.

    Side effects: writes both into the lease's `tls` folder, which only its owner may read.
    """
    # here, as clients and workers need none of it, and it takes a while to load
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
        .issuer_name(name)  # its own signature, the only one that the lease's processes trust
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

    `held` are names of nodes that the lease holds as long as it lasts, `since` a time in seconds
    since the epoch. `asked` gives when the job of a node was submitted; None for a node without
    a job of its own, which ends with its worker.
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
        """Note that a node is there, if that is new."""
        if name not in self._there:
            self._there.add(name)
            self._write(NodeLine(event="began", name=name, at=at, asked_at=self._asked(name)))

    def end(self, name: str) -> None:
        """Note that a node is there no more, if it was."""
        if name in self._there:
            self._there.remove(name)
            self._write(NodeLine(event="ended", name=name))

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Note that a node's worker has joined."""
        state = scheduler.workers[worker]
        name = self._names[worker] = str(state.name)
        self.begin(name, time.time())
        self._write(NodeLine(event="joined", name=name, host=state.host))

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        """Note that a node has ended which is nothing but its worker."""
        name = self._names.pop(worker, "")
        if name not in self._held and self._asked(name) is None:
            self.end(name)

    def _write(self, line: NodeLine) -> None:
        try:
            append_line(self._folder.nodes, line.model_dump_json(exclude_none=True))
        except OSError as error:
            logger.warning("When %s %s is not written down: %s", line.name, line.event, error)
