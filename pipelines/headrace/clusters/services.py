"""Services of a lease, beside its host: started before its workers, ended after them."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress

from headrace.clusters.containers import environment, wrap
from headrace.clusters.images import on_site
from headrace.clusters.lease_records import SERVICE, LeaseSpec
from headrace.errors import LeaseError
from headrace.files.atomic import write_json
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.files.machine import free_ports
from headrace.processes.children import Child, ChildEnd, ChildGroup
from headrace.processes.working_folder import python_module
from headrace.recipe.batch import Service
from headrace.site_secrets import secrets_of

_POLL_S, _GRACE_S = 0.1, 10.0


class Services:
    """The services of a lease's role."""

    def __init__(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        self._folder = folder
        self._spec = spec
        self._group = ChildGroup(())

    async def start(self) -> None:
        """Start them all; raise LeaseError if one ends, or accepts no connection in time."""
        from headrace.clusters.scheduler import address  # Dask takes time to import

        if not (services := (role := self._spec.role).services):
            return
        host = "127.0.0.1" if role.is_here else address(role.batch.interface)
        try:
            found = free_ports(host, *(service.port or 0 for service in services.values()))
        except OSError as error:
            fixed = ", ".join(name for name, service in services.items() if service.port)
            what = f"{SERVICE}'{fixed}' cannot have its port: {error.strerror}"
            raise LeaseError(what, "Correct `port`, or leave it out for a free one.") from error
        ports = dict(zip(services, found, strict=True))
        children = [self._child(name, host, port) for name, port in ports.items()]
        self._group = ChildGroup(children, _GRACE_S).__enter__()
        for name, port in ports.items():
            deadline = time.monotonic() + (limit_s := services[name].start_timeout)
            while not await _listens(host, port):
                self.check()
                if time.monotonic() > deadline:
                    what = f"accepts no connection after {limit_s:g} s, at port {port} of {host}"
                    ends = await asyncio.to_thread(self._group.stop)
                    raise next(_error(end, what) for end in ends if end.name == name)
                await asyncio.sleep(_POLL_S)
        self.check()  # the port may be another program's
        names = {each: re.sub(r"\W", "_", f"HEADRACE_SERVICE_{each}").upper() for each in ports}
        variables = {names[each]: f"{host}:{port}" for each, port in ports.items()}
        write_json(self._folder.services, variables)

    def check(self) -> None:
        """Raise `LeaseError` if a service has ended."""
        for end in self._group.ends():
            raise _error(end, f"ended with {end.cause}")

    async def close(self) -> None:
        """End them all; what is left of them ends with the lease's processes."""
        await asyncio.to_thread(self._group.stop)

    def _child(self, name: str, host: str, port: int) -> Child:
        service: Service = self._spec.role.services[name]
        site = SiteFolder(self._folder.path.parent.parent)
        container = service.container and on_site(service.container, site.path)
        words = [each.replace("{host}", host) for each in service.command]
        words = [each.replace("{port}", str(port)) for each in words]
        command = wrap(container, words, (str(site.path),), 0)
        above = site.run(self._spec.run_id).path if self._spec.run_id else self._folder.path
        return Child(
            name=name,
            command=python_module("headrace.processes", "--", *command),
            log=above / "services" / f"{name}.log",
            env=environment() | secrets_of(self._folder),
        )


def _error(end: ChildEnd, what: str) -> LeaseError:
    hint = f"Correct `services` of the role. See {end.log}:\n{end.last_words}"
    return LeaseError(f"{SERVICE}'{end.name}' {what}", hint)


async def _listens(host: str, port: int) -> bool:
    with suppress(OSError):
        (await asyncio.open_connection(host, port))[1].close()
        return True
    return False
