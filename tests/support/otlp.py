"""A receiver of OTLP over HTTP on the loopback: what it got, decoded."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """What has arrived."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.metrics: list[tuple[str, dict[str, str], Any]] = []
        """Name, attributes and data point of each figure."""
        self.spans: dict[str, Any] = {}
        """The newest span of each name."""

    def take(self, path: str, body: bytes) -> None:
        """Decode a request."""
        if path == "/v1/metrics":
            for each in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for metric in (one for scope in each.scope_metrics for one in scope.metrics):
                    data = getattr(metric, metric.WhichOneof("data"))
                    for point in data.data_points:
                        self.metrics.append((metric.name, _known(point.attributes), point))
        else:
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                for span in (one for scope in each.scope_spans for one in scope.spans):
                    self.spans[span.name] = span

    def newest(self, name: str) -> tuple[dict[str, str], Any]:
        """Attributes and data point of a metric, as told last."""
        return next((tags, point) for told, tags, point in reversed(self.metrics) if told == name)


def attributes(span: Any) -> dict[str, str]:
    """Those of a span."""
    return _known(span.attributes)


def _known(pairs: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in pairs}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A receiver that listens as long as the context is open."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_packed = self.headers.get("Content-Encoding") == "gzip"
            collector.take(self.path, gzip.decompress(body) if is_packed else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        Thread(target=server.serve_forever, daemon=True).start()
        yield collector
        server.shutdown()
