"""A request of the dashboard passes when its path begins with the secret, and only then."""

from __future__ import annotations

import pytest
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine
from tornado.web import Application, RequestHandler

from headrace.leases.dashboard import _Gate, _Refusal


class Page(RequestHandler):
    """A page of the dashboard."""


@pytest.mark.parametrize(
    ("path", "handler"),
    [
        ("/secret/status", Page),
        ("/secret/individual/a", Page),
        ("/status", _Refusal),
        ("/secre/status", _Refusal),
        ("/status/secret", _Refusal),
        ("//secret/status", _Refusal),
        ("/", _Refusal),
    ],
)
def test_the_gate(path: str, handler: type[RequestHandler]) -> None:
    gate = _Gate(Application([(".*", Page)]), "secret")
    line = RequestStartLine("GET", path, "HTTP/1.1")
    headers = HTTPHeaders({"Host": "127.0.0.1"})
    found = gate.find_handler(HTTPServerRequest(start_line=line, headers=headers))
    assert found.handler_class is handler
