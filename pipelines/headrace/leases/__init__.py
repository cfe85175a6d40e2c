"""Leases of a run: acquired, released, ended."""
