"""What a zygote of the tests imports and forks: it tells of itself, or answers as an echo."""

from __future__ import annotations

import os
import random
import socket
import time
from pathlib import Path

IMPORTED_AT = time.monotonic()


def main(arguments: list[str]) -> int:
    """Print all, or, of `hold`, answer once by the socket that is its standard input."""
    if arguments[0] == "hold":
        with socket.socket(fileno=os.dup(0)) as ours:
            ours.sendall(ours.recv(100))
        return 0
    shown = Path("/proc/self/environ").read_bytes().decode().split("\0")
    print(f"imported_at={IMPORTED_AT}\npid={os.getpid()}\nsession={os.getsid(0)}")
    print(f"arguments={' '.join(arguments)}\nrandom={random.random()}")
    print(f"folder={os.readlink('/proc/self/cwd')}")
    print("command=" + Path("/proc/self/cmdline").read_text().replace("\0", " "))
    print("\n".join(f"{name}={value}" for name, value in os.environ.items()))
    print("\n".join(f"of_kernel.{each}" for each in shown if each), flush=True)
    print("end=", flush=True)
    return 0
