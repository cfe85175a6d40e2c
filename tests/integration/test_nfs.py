"""Two clients of a real NFS server, each with a kernel of its own.

Nightly, because user-mode Linux, which boots them, does not run on every processor.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.guests import missing
from support.nfs import NfsMachines, nfs_machines, program
from support.waiting import wait_until

pytestmark = [pytest.mark.nightly]


@pytest.fixture(scope="module")
def machines() -> Iterator[NfsMachines]:
    if problem := missing():
        pytest.skip(problem)
    with nfs_machines() as made:
        yield made


def test_a_ledger_there_is_refused(machines: NfsMachines) -> None:
    shown = machines.control.run(machines.command("runs", home="/mnt/home"), check=False)
    words = " ".join(shown.replace("│", " ").split())
    assert "is on a network file system (nfs4), where SQLite loses data" in words
    assert machines.server.run("ls -A /srv/export/home", check=False).count("ledger") == 0


_HOLD = """
import time
from pathlib import Path
from filelock import FileLock
from headrace.files.locks import locked
handle, other = locked(Path("/mnt/flock")), FileLock("/mnt/fcntl")
other.acquire()
Path("/srv/pid").write_text(str(__import__("os").getpid()))
time.sleep(1000)
"""

_ASK = """
from pathlib import Path
from filelock import FileLock, Timeout
from headrace.files.locks import locked_at_once
handle = locked_at_once(Path("/mnt/flock"))
try:
    FileLock("/mnt/fcntl", timeout=0).acquire()
    other = "granted"
except Timeout:
    other = "refused"
print("refused" if handle is None else "granted", other)
"""


def test_locks_of_a_client_are_refused_to_the_other_until_its_process_ends(
    machines: NfsMachines,
) -> None:
    machines.node.start(program(_HOLD), "hold.log")
    held = wait_until(
        lambda: machines.node.run("cat /srv/pid 2>/dev/null", check=False), 60, "the locks"
    )
    assert machines.python(machines.control, _ASK) == ["refused", "refused"]
    machines.node.run(f"kill -9 {held} && while kill -0 {held}; do sleep 0.1; done", check=False)
    assert machines.python(machines.control, _ASK) == ["granted", "granted"]


_LOOK = """
from pathlib import Path
from headrace.files.atomic import is_there
print(Path("/mnt/late").exists(), is_there(Path("/mnt/late")))
"""


def test_a_file_of_the_other_client_is_found_though_its_name_was_missing(
    machines: NfsMachines,
) -> None:
    """A client caches for half a minute that a name is missing, until it opens the folder."""
    machines.control.run("test -e /mnt/late", check=False)
    machines.node.run("touch /mnt/late")
    plain, found = machines.python(machines.control, _LOOK)
    assert found == "True", plain


_READ = """
import time
from pathlib import Path
from headrace.files.atomic import read_bytes
path, found, end = Path("/mnt/status"), set(), time.monotonic() + 3
while time.monotonic() < end:
    (word,) = set(read_bytes(path).split())
    found.add(word)
print(len(found))
"""


def test_a_file_that_is_replaced_all_the_time_is_read_whole(machines: NfsMachines) -> None:
    replace = "for i in $(seq 1 99999); do yes $i | head -n 20000 >new; mv new status; done"
    machines.server.start(f"cd /srv/export; echo $$ >/srv/pid; {replace}", "replace.log")
    look = "cat /srv/export/status 2>/dev/null"
    wait_until(lambda: machines.server.run(look, check=False), 60, "a file")
    assert int(machines.python(machines.control, _READ)[0]) > 1
    machines.server.run("kill $(cat /srv/pid)")


def test_the_check_of_a_site_there(machines: NfsMachines) -> None:
    machines.prepare()
    shown = machines.control.run(machines.command("site", "check", "--site", "nfs.yaml"))
    assert "flock and fcntl" in shown
    assert "/mnt/site (nfs4)" in shown
    assert "root@node sees /mnt/site" in shown
