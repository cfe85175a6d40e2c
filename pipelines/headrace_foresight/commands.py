"""Commands about the cost and duration of work."""

from __future__ import annotations

from headrace.cli.command_group import Command

COMMANDS = {
    "what-if": Command(
        "Run",
        "headrace_foresight.what_if_command:what_if",
        "Compare what trials take on other sites, nodes, time limits.",
    ),
    "cost": Command(
        "Look",
        "headrace_foresight.cost_command:cost",
        "Show what machines took: hours, money, energy, what was wasted.",
    ),
    "rank": Command(
        "Look",
        "headrace_foresight.rank_command:rank",
        "Rank sites by what runs of a recipe took there.",
    ),
    "ownership": Command(
        "Admin",
        "headrace_foresight.ownership_command:ownership",
        "Compute what an hour of an owned cluster costs.",
    ),
}
