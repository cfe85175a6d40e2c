"""Reads a run, step, lease, suite or dataset once, into one frozen record."""
