"""What a stranger meets at the ports that processes listen on."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from headrace.clusters.scheduler import security
from headrace.files.layout import LeaseFolder

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Door:
    """A TCP port that is listened on."""

    ip: str
    port: int


def doors(processes: Iterable[psutil.Process]) -> set[Door]:
    """All TCP ports that processes listen on."""
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    found.add(Door(one.laddr.ip, one.laddr.port))
    return found


def key_of(lease: LeaseFolder) -> ssl.SSLContext:
    """How a client of a lease shows that it may use it; takes any server for the right one."""
    arguments = security(lease).get_connection_args("client")
    context: ssl.SSLContext = arguments["ssl_context"]
    context.verify_mode = ssl.CERT_NONE
    return context


def no_key() -> ssl.SSLContext:
    """How somebody without any key tries."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def knock(door: Door, key: ssl.SSLContext) -> str:
    """Connect by TLS and wait for the first byte; `open`, or the reason of the refusal."""
    with socket.create_connection((door.ip, door.port), timeout=_TIMEOUT_S) as plain:
        try:
            with key.wrap_socket(plain) as encrypted:
                return "open" if encrypted.recv(1) else "closed"
        except ssl.SSLError as error:
            return error.reason or str(error)


def page_status(door: Door, path: str, headers: dict[str, str] | None = None) -> int:
    """Status of the answer to an HTTP request."""
    connection = http.client.HTTPConnection(door.ip, door.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path, headers=headers or {})
        return connection.getresponse().status
    finally:
        connection.close()
