"""Work with a store in threads and processes of a process of its own."""

from __future__ import annotations

import faulthandler
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

from headrace.objects.protocol import Store


def read_by_threads_and_forks(store: Store, contents: Sequence[bytes]) -> list[bytes]:
    """Write files, and return them as read by threads, by forks, and by the threads again.

    A process that hangs for a minute ends, and writes its stacks to the test's output.
    """
    faulthandler.dump_traceback_later(60, exit=True)
    names = [content.decode() for content in contents]
    for name, content in zip(names, contents, strict=True):
        store.write(name, content)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(store.read, names))
        with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as forks:
            found += forks.map(store.read, names)
        return found + list(threads.map(store.read, names))
