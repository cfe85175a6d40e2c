"""The command of benchmarks."""

from __future__ import annotations

from headrace.cli.command_group import Command

COMMANDS = {
    "bench": Command(
        "Admin",
        "headrace_bench.command:app",
        "Measure how fast headrace is here, against the limit.",
    ),
}
