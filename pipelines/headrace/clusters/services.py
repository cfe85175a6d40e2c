"""Services of a lease, beside its host: started before its workers, ended after them."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil

from headrace.clusters.containers import environment, wrap
from headrace.clusters.images import on_site
from headrace.clusters.lease_records import Addresses, LeaseSpec
from headrace.errors import LeaseError
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.processes.children import Child, ChildEnd, Program, start_program
from headrace.processes.identity import end_processes
from headrace.processes.working_folder import python_module
from headrace.recipe.batch import Service
from headrace.site_secrets import secrets_of

_POLL_S, _GRACE_S = 0.1, 10.0


class Services:
    """The services of a lease's role."""

    def __init__(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        self._folder = folder
        self._spec = spec
        self._running: dict[str, tuple[Program, Path]] = {}

    async def start(self) -> None:
        """Start them all, and wait until each accepts connections.

        Raises:
            LeaseError: A service ended, or accepts no connection in time.
        """
        if not (services := self._spec.role.services):
            return
        found = {}
        places = {name: self._start(name, service) for name, service in services.items()}
        for name, (host, port) in places.items():
            deadline = time.monotonic() + (limit_s := services[name].start_timeout)
            while not _listens(host, port):
                self.check()
                if time.monotonic() > deadline:
                    what = f"accepts no connection at port {port} of {host} after {limit_s:g} s"
                    raise self._error(name, what)
                await asyncio.sleep(_POLL_S)
            found[f"HEADRACE_SERVICE_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"] = f"{host}:{port}"
        self.check()  # the port may be another program's
        write_record(self._folder.services, Addresses(variables=found))

    def check(self) -> None:
        """Raise `LeaseError` if a service has ended."""
        for name, (process, _) in self._running.items():
            if (code := process.poll()) is not None:
                raise self._error(name, f"ended with code {code}", code)

    async def close(self) -> None:
        """End them all; what is left of them ends with the lease's processes."""
        trees = []
        for process, _ in self._running.values():
            with suppress(psutil.NoSuchProcess):
                trees.append(psutil.Process(process.pid))
        await asyncio.to_thread(end_processes, trees, _GRACE_S)

    def _start(self, name: str, service: Service) -> tuple[str, int]:
        from headrace.clusters.scheduler import address  # Dask takes time to import

        role, site = self._spec.role, SiteFolder(self._folder.path.parent.parent)
        host = "127.0.0.1" if role.is_here else address(role.batch.interface)
        with socket.create_server((host, service.port or 0)) as listener:
            port = int(listener.getsockname()[1])
        container = service.container and on_site(service.container, site.path)
        words = [each.replace("{host}", host) for each in service.command]
        words = [each.replace("{port}", str(port)) for each in words]
        command = wrap(container, words, (str(site.path),), 0)
        above = site.run(self._spec.run_id).path if self._spec.run_id else self._folder.path
        child = Child(
            name=name,
            command=python_module("headrace.processes", "--", *command),
            log=above / "services" / f"{name}.log",
            env=environment() | secrets_of(self._folder),
        )
        self._running[name] = (start_program(child), child.log)
        return host, port

    def _error(self, name: str, what: str, code: int = 0) -> LeaseError:
        log = self._running[name][1]
        end = ChildEnd(name=name, code=code, at=time.time(), stopped=False, log=log)
        hint = f"Correct `services` of the role. See {log}:\n{end.last_words}"
        return LeaseError(f"Service '{name}' {what}", hint)


def _listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), 1.0):
        return True
    return False
