"""The command that measures machines."""

from __future__ import annotations

from headrace.cli.command_group import Command

COMMANDS = {
    "probe": Command(
        "Run",
        "headrace_probes.command:probe",
        "Measure the machines of a site, bare or in a container.",
    )
}
