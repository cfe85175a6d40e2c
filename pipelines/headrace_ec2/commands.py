"""The command for resources in EC2."""

from __future__ import annotations

from headrace.cli.command_group import Command

COMMANDS = {
    "cloud": Command(
        "Admin", "headrace_ec2.command:app", "Instances of EC2 that headrace has started."
    )
}
