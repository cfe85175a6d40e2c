"""What is raised when a time is over: before Python 3.11 asyncio has a type of its own."""

from __future__ import annotations

import asyncio

TIMED_OUT = (TimeoutError, asyncio.TimeoutError)
"""Types to catch."""
