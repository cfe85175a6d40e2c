"""Dask's dashboard, loaded when somebody opens it.

Its libraries take half a second of a core and 30 MB in each host, and most leases end before
anybody has looked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tornado.httputil import HTTPServerRequest
from tornado.web import Application

if TYPE_CHECKING:
    from distributed import Scheduler


def offer_dashboard(scheduler: Scheduler) -> None:
    """Have a scheduler that was opened without a dashboard load it with the first page."""
    scheduler.http_application.add_application(_Unopened(scheduler))


class _Unopened(Application):
    """Is asked for a page that the scheduler itself does not have; gives its place to Dask's."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        """Load the dashboard, and let it answer."""
        from distributed.dashboard.scheduler import connect

        pages = self._scheduler.http_application
        pages.applications.remove(self)
        connect(pages, self._scheduler.http_server, self._scheduler, prefix="/")
        return pages.find_handler(request, **options)
