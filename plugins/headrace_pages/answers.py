"""Answers of the data endpoints: computed once for all users, sent only when they have changed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request, Response

from headrace.record import Record, as_json_values

KEPT_S = 2.0
"""Seconds for which an answer is reused for equal requests."""

PRIVATE = {"Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}
"""Headers of data that not every user may see."""

_AT_ONCE = 4
"""Answers computed at once: Airflow's own threads stay free for Airflow."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """An answer as it is sent."""

    body: bytes
    """JSON."""
    etag: str
    """Hash of all but the time of the answer."""
    made_at: float
    """By the monotonic clock."""


class Answers:
    """Computes answers in a few threads of its own, each at most once every `kept_s` seconds.

    Each is computed within the context of `within`.
    """

    def __init__(
        self,
        kept_s: float = KEPT_S,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._kept_s, self._within = kept_s, within
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-pages")
        self._asked: dict[object, asyncio.Task[Rendered]] = {}

    async def send(self, request: Request, question: partial[Any]) -> Response:
        """Answer a request by the result of a call; 304 if the browser has that already."""
        answer = await self.of(question)
        headers = {"ETag": answer.etag, **PRIVATE}
        known = request.headers.get("if-none-match", "").replace("W/", "").split(", ")
        if answer.etag.removeprefix("W/") in known:
            return Response(status_code=304, headers=headers)
        return Response(answer.body, media_type="application/json", headers=headers)

    async def of(self, question: partial[Any]) -> Rendered:
        """Return the answer to a question; requests during its computation share it."""
        self._forget()
        key = (question.func, question.args, *sorted(question.keywords.items()))
        if key not in self._asked:
            self._asked[key] = asyncio.create_task(self._make(question))
        return await asyncio.shield(self._asked[key])  # others still wait if one disconnects

    async def _make(self, question: Callable[[], Record]) -> Rendered:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _answer, question, self._within)

    def _forget(self) -> None:
        """Drop answers that are too old, and questions without an answer."""
        now = time.monotonic()
        for key, task in [*self._asked.items()]:
            if task.done() and (task.exception() or now - task.result().made_at >= self._kept_s):
                del self._asked[key]


def _answer(
    question: Callable[[], Record], within: Callable[[], AbstractContextManager[None]]
) -> Rendered:
    with within():
        record = question()
    body = record.model_dump_json().encode()
    if b"NaN" in body or b"Infinity" in body:  # browsers refuse these in JSON
        body = json.dumps(as_json_values(record)).encode()
    lasting = body
    if "now" in type(record).model_fields:
        lasting = record.model_dump_json(exclude={"now"}).encode()
    digest = hashlib.blake2b(lasting, digest_size=12).hexdigest()
    return Rendered(body=body, etag=f'W/"{digest}"', made_at=time.monotonic())
