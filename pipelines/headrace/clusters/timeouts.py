"""What is raised when a time is over: before Python 3.11 there are three types."""

from __future__ import annotations

import asyncio
import concurrent.futures

TIMED_OUT = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)
"""Types to catch."""
