"""Processes of this machine: identity, common end, warm servers that fork or answer calls."""
