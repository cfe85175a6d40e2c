"""A function that has the nodes of its lease compute squares."""

import time

from distributed import get_worker

from headrace import script

_running = []


def square(number):
    """The square, the node, and how many of these calls the node runs at the moment."""
    _running.append(number)
    time.sleep(0.1)
    at_once = len(_running)
    _running.remove(number)
    return number**2, get_worker().name, at_once


def squares(num_items):
    with script.client() as client:
        found = client.gather(client.map(square, range(num_items)))
        client.map(square, range(num_items, 500))  # nobody waits for these
    with script.client() as client:
        tasks = client.run_on_scheduler(_names_of_tasks)
    return {
        "sum": sum(value for value, _, _ in found),
        "nodes": len({node for _, node, _ in found}),
        "most_at_once": max(at_once for _, _, at_once in found),
        "left": sum("square" in name for name in tasks),
    }


def _names_of_tasks(dask_scheduler):
    return list(dask_scheduler.tasks)
