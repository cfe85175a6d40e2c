"""How a part is broken on purpose."""

import threading


def broken(fault):
    """A part that `raises`, `hangs` for good, or gives `nonsense`."""

    def part(*_, **__):
        if fault == "raises":
            raise KeyError("broken on purpose")
        if fault == "hangs":
            threading.Event().wait()
        return "nonsense"

    return part
