"""The process of a TensorBoard.

`python -m headrace_pages.tensorboard_process FOLDER SOCKET S` starts it.

It answers on a Unix socket, because every account of the machine reaches ports of 127.0.0.1. It has
TensorBoard's own plugins, except the one that opens any file that event files name.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any

from tensorboard import default
from tensorboard.program import TensorBoard, TensorBoardServer
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Response

_POLL_S = 1.0
_OPENS_FILES = "ProjectorPlugin"

_STANDS_IN = b"""<script>{
const kept = new Map();
Object.defineProperty(window, "localStorage", {value: {
  getItem: (key) => kept.get(key) ?? null,
  setItem: (key, value) => kept.set(key, String(value)),
  removeItem: (key) => kept.delete(key),
}});
Object.defineProperty(document, "cookie", {value: ""});
const Known = Worker;
window.Worker = function (script) {
  const text = `importScripts(${JSON.stringify(new URL(script, location.href))})`;
  return new Known(URL.createObjectURL(new Blob([text])));
};
}</script>"""
"""Replaces what TensorBoard needs and browsers refuse to pages without rights."""


class _SocketServer(TensorBoardServer):  # type: ignore[misc]
    """Serves TensorBoard on a Unix socket, and records the time of the last request."""

    asked_s = 0.0

    def __init__(self, socket: str, app: Any, _flags: object) -> None:
        _SocketServer.asked_s = time.monotonic()

        def answer(environment: Any, start: Any) -> Any:
            _SocketServer.asked_s = time.monotonic()
            return (app if environment["PATH_INFO"] != "/" else _home(app))(environment, start)

        place = f"unix://{socket}"
        self._server = make_server(place, 0, answer, threaded=True, request_handler=_Quiet)

    def serve_forever(self) -> None:
        self._server.serve_forever()

    def get_url(self) -> str:
        return ""


class _Quiet(WSGIRequestHandler):
    """Writes no line for each request, because the log would grow without limit."""

    def log_request(self, *_: object) -> None:
        """Nothing."""


def _home(app: Any) -> Any:
    """Wrap TensorBoard's own page for a frame without rights, below any path."""

    def answer(environment: Any, start: Any) -> Any:
        page = Response.from_app(app, {**environment, "HTTP_ACCEPT_ENCODING": "identity"})
        page.data = _STANDS_IN + page.data.replace(b"url(/font-roboto", b"url(font-roboto")
        return page(environment, start)

    return answer


def main(folder: str, socket: str, kept_s: str) -> None:
    """Serve the event files of a folder until so many seconds pass without a request."""
    parent = os.getppid()
    plugins = [each for each in default.get_static_plugins() if _name(each) != _OPENS_FILES]
    board = TensorBoard(plugins=plugins, server_class=partial(_SocketServer, socket))
    # fast loading is a separate process, on a port that every account reaches
    board.configure(argv=("",), logdir=folder, load_fast="false")
    board.launch()
    while time.monotonic() - _SocketServer.asked_s < float(kept_s) and os.getppid() == parent:
        time.sleep(_POLL_S)
    os.unlink(socket)


def _name(plugin: Any) -> str:
    return str(getattr(plugin, "__name__", type(plugin).__name__))


if __name__ == "__main__":
    main(*sys.argv[1:])
