"""Dask's dashboard: loaded when somebody opens it, and shown to who knows its link alone.

Its libraries take half a second of a core and 30 MB in each host, and most leases end before
anybody has looked.
"""

from __future__ import annotations

import secrets
from typing import Any

from distributed import Scheduler
from tornado.httputil import HTTPServerRequest
from tornado.routing import Router
from tornado.web import Application, RequestHandler

_LOOPBACK = "127.0.0.1"
_REFUSED = 403


class LeaseScheduler(Scheduler):  # type: ignore[misc]
    """A Dask scheduler whose pages all lie below a random folder, which is in its link.

    Other accounts of the machine reach its port, and a browser can show no key of a lease. The
    link is in files that the lease's owner alone may read.

    Args:
        **options: As for Dask's own; those about pages are set here.
    """

    def __init__(self, **options: Any) -> None:
        self._secret = secrets.token_hex(32)
        pages = {"dashboard": False, "dashboard_address": f"{_LOOPBACK}:0"}
        super().__init__(**{**options, **pages, "http_prefix": self._secret})

    @property
    def dashboard_url(self) -> str:
        """Link of the dashboard; it works on the scheduler's own machine, or by an SSH tunnel."""
        return f"http://{_LOOPBACK}:{self.http_server.port}/{self._secret}/status"

    def start_http_server(self, *arguments: Any, **options: Any) -> None:
        """Have all requests pass the gate; called while the scheduler is made."""
        super().start_http_server(*arguments, **options)
        self.http_server.request_callback = _Gate(self.http_application, self._secret)
        self.http_application.add_application(_Unopened(self, self._secret))


class _Gate(Router):
    """Lets a request pass whose path begins with the secret."""

    def __init__(self, pages: Application, secret: str) -> None:
        self._pages = pages
        self._secret = secret.encode()
        self._refusal = Application([(".*", _Refusal)])

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        """The pages, or a refusal."""
        shown = request.path.removeprefix("/").partition("/")[0].encode()
        is_known = secrets.compare_digest(shown, self._secret)
        return (self._pages if is_known else self._refusal).find_handler(request, **options)


class _Refusal(RequestHandler):
    """Says where the link is."""

    def prepare(self) -> None:
        self.set_status(_REFUSED)
        self.set_header("Content-Type", "text/plain")
        self.finish("This dashboard opens by its own link; its owner finds it: headrace lease list")


class _Unopened(Application):
    """Is asked for a page that the scheduler itself does not have; gives its place to Dask's."""

    def __init__(self, scheduler: Scheduler, prefix: str) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._prefix = prefix

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        """Load the dashboard, and let it answer."""
        from distributed.dashboard.scheduler import connect

        pages = self._scheduler.http_application
        pages.applications.remove(self)
        connect(pages, self._scheduler.http_server, self._scheduler, prefix=self._prefix)
        return pages.find_handler(request, **options)
