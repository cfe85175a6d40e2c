"""The worker of a node in the site's container; host and members, which start it, stay outside."""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio.subprocess import Process
from contextlib import suppress

from headrace.errors import LeaseError
from headrace.leases import preflight
from headrace.leases.records import LeaseSpec
from headrace.leases.timeouts import TIMED_OUT
from headrace.storage.layout import LeaseFolder

logger = logging.getLogger(__name__)

INSIDE = "--inside="
"""Argument of the member that runs in the container, before its place in the gang."""

_AT_ONCE_S = 30.0
_CLOSE_TIMEOUT_S = 40.0


class ContainedNode:
    """The process of this node that runs in the container.

    Args:
        folder: The lease.
        spec: What was asked for.
        index: Place of this node in the gang, from 0.
    """

    def __init__(self, folder: LeaseFolder, spec: LeaseSpec, index: int) -> None:
        self._folder = folder
        arguments = ("-m", "headrace.leases.member", str(folder.path), f"{INSIDE}{index}")
        self._command = preflight.in_container(folder, spec, arguments)
        self._process: Process | None = None

    @classmethod
    async def open(cls, folder: LeaseFolder, spec: LeaseSpec, index: int) -> ContainedNode:
        """Start the worker of a node in the container; see the class."""
        node = cls(folder, spec, index)
        node._process = await node._start()
        return node

    async def keep(self) -> None:
        """Start the worker again when its process ends, until the lease closes.

        Raises:
            LeaseError: It ended as soon as it had started.
        """
        while self._process is not None:
            started_s = time.monotonic()
            code = await self._process.wait()
            if self._folder.close.exists() or not self._folder.spec.exists():
                return
            if time.monotonic() - started_s < _AT_ONCE_S:
                raise LeaseError(
                    f"The container of {preflight.node_name()} ended at once, with code {code}",
                    f"See {self._folder.log}; the command was: {' '.join(self._command)}",
                )
            logger.warning("The container of this node ended with code %d; starting another", code)
            self._process = await self._start()

    async def close(self) -> None:
        """End the worker."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _CLOSE_TIMEOUT_S)
        except TIMED_OUT:
            process.kill()

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, env=preflight.environment()
        )
