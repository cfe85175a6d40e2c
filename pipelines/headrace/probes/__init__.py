"""Probes: what the nodes of a lease are and have."""
