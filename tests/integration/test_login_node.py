"""Commands on a login node: one connection for all, and failures of it told from the command's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from headrace.batch.slurm import Slurm
from headrace.batch.ssh import SshCommands, master_command
from headrace.clusters import lease_client
from headrace.errors import AmbiguousSubmitError, BatchError, LoginError
from headrace.recipe.batch import Login
from headrace.recipe.site import Role
from support.factories import job_spec
from support.leases import opened
from support.login_node import LoginNode
from support.slurm_dev import DevSlurm
from support.waiting import wait_until


def test_text_goes_there_and_back_as_it_is(login_node: LoginNode):
    commands = login_node.commands({"COLOUR": "it's $HOME"})
    hard = 'a\'b $HOME "q" \\ \n*! `id`'
    assert commands.run(("printf", "%s", hard)).output == hard
    script = ("sh", "-c", 'printf "%s|" "$COLOUR"; cat')
    assert commands.run(script, "#!/bin/bash\nén").output == "it's $HOME|#!/bin/bash\nén"
    assert commands.run(script).output == "it's $HOME|"


def test_what_a_shell_says_by_itself_is_no_output(login_node: LoginNode):
    """A `.bashrc` that greets must not be taken for the id of a job."""
    login_node.restart_with('ForceCommand echo "Welcome to login1"; eval "$SSH_ORIGINAL_COMMAND"')
    assert login_node.commands().run(("echo", "17")).output == "17\n"


def test_a_login_node_that_runs_nothing_is_named(login_node: LoginNode):
    login_node.restart_with('ForceCommand echo "This account has expired"; exit 1')
    with pytest.raises(LoginError, match=r"runs no commands for this user: .* has expired"):
        login_node.commands().run(("true",))


def test_one_connection_carries_all_commands(login_node: LoginNode):
    """pains 14: a burst of connections is what an sshd drops (MaxStartups)."""
    with ThreadPoolExecutor(12) as pool:
        found = pool.map(lambda number: login_node.commands().run(("echo", str(number))), range(24))
    assert [each.output for each in found] == [f"{number}\n" for number in range(24)]
    assert login_node.num_connections == 1
    assert (login_node.folder / "ssh").stat().st_mode & 0o077 == 0


def test_failures_of_a_command_are_its_own(login_node: LoginNode):
    commands = login_node.commands()
    failed = commands.run(("sh", "-c", "echo sorry >&2; exit 3"))
    assert (failed.code, failed.error) == (3, "sorry\n")
    assert commands.run(("sh", "-c", "exit 255")).code == 254  # 255 is ssh's own
    with pytest.raises(BatchError, match=r"(?s)sbatch-of-old cannot be run.*`login.path`"):
        commands.run(("sbatch-of-old",))


def test_a_command_without_an_answer_is_given_up(login_node: LoginNode):
    login_node.commands().run(("true",))  # connected: the limit is for the command
    commands = SshCommands(login_node.login, {}, timeout_s=3.0, folder=login_node.folder / "ssh")
    answer = commands.run(("sleep", "60"))
    assert answer.code is None
    assert "gave no answer in 3 s" in answer.error


def test_a_connection_that_breaks_is_no_answer_and_is_made_again(
    login_node: LoginNode, tmp_path: Path
):
    """pains 17: a submit whose connection broke may have done its work."""
    commands = login_node.commands()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(commands.run, ("sh", "-c", f"touch {tmp_path}/begun; sleep 20"))
        wait_until((tmp_path / "begun").exists, 120, "the command to begin")
        (master,) = _masters(login_node)
        master.kill()
        answer = slow.result(timeout=20)
    assert answer.code is None
    assert "was lost" in answer.error
    assert commands.run(("echo", "again")).output == "again\n"
    assert login_node.num_connections == 2


def test_an_sshd_that_is_gone_is_named(login_node: LoginNode):
    commands = login_node.commands()
    assert commands.run(("true",)).code == 0
    login_node.stop()
    wait_until(lambda: not _masters(login_node), 120, "ssh to notice that the connection is cut")
    with pytest.raises(LoginError, match=r"(?s)127.0.0.1 cannot be reached .*refused.*ssh .*true`"):
        commands.run(("true",))
    login_node.start()
    assert commands.run(("true",)).code == 0


def test_an_unknown_host_key_and_an_unknown_user_key_are_told(login_node: LoginNode):
    known = login_node.folder / "known_hosts"
    text = known.read_text()
    known.write_text("")
    with pytest.raises(LoginError, match=r"(?s)Host key verification failed.*by hand"):
        login_node.commands().run(("true",))
    known.write_text(text)
    (login_node.folder / "user_key.pub").write_text("")
    with pytest.raises(LoginError, match=r"(?s)Permission denied.*never asks for a password"):
        login_node.commands().run(("true",))


def test_a_folder_that_others_may_enter_is_not_used(login_node: LoginNode):
    (login_node.folder / "ssh").mkdir(mode=0o755)
    with pytest.raises(LoginError, match="only you may enter"):
        login_node.commands().run(("true",))


def test_a_submit_over_a_broken_connection_is_unclear_and_one_without_is_not():
    class Broken(SshCommands):
        def _connect(self) -> None:
            """The connection seems to be there."""

    login = Login(host="nobody@127.0.0.1", port=9)
    with pytest.raises(AmbiguousSubmitError, match="was lost"):
        Slurm(Broken(login, {})).submit(job_spec())
    with pytest.raises(LoginError, match="cannot be reached"):
        Slurm(SshCommands(login, {})).submit(job_spec())


@pytest.mark.slow
def test_a_gang_through_a_login_node(slurm: DevSlurm, login_node: LoginNode, tmp_path: Path):
    """pains 14: submitted, waited for and ended from outside; inside, its commands are local."""
    batch = {"login": login_node.login.model_dump(), "config": str(slurm.config)}
    role = Role.model_validate(
        {
            "backend": "slurm",
            "kind": "gang",
            "lifetime": 600,
            "batch": batch | {"interface": "lo", "poll": 0.3},
        }
    )
    folder = opened(tmp_path, role)
    info = lease_client.info(folder)
    assert list(info.job_ids) == slurm.queue()
    lease_client.end(folder)
    assert slurm.queue() == []
    assert login_node.num_connections == 1


def test_the_command_that_connects_asks_nothing_and_passes_nothing_on():
    login = Login(host="me@login1", port=2222, identity="/keys/id", options=("ProxyJump=gate",))
    command = " ".join(master_command(login, Path("/tmp/s")))
    for part in ("-p 2222", "-i /keys/id", "BatchMode=yes", "StrictHostKeyChecking=yes",
                 "ForwardAgent=no", "ClearAllForwardings=yes", "ControlPath=/tmp/s"):  # fmt: skip
        assert part in command
    # OpenSSH takes the first value it is given: the site's
    assert command.index("ProxyJump=gate") < command.index("BatchMode")


def _masters(node: LoginNode) -> list[psutil.Process]:
    socket = f"ControlPath={node.commands().socket}"
    found = psutil.process_iter(["cmdline"])
    return [each for each in found if socket in (each.info["cmdline"] or ())]
