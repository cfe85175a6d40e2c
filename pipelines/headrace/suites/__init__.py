"""Suites: many trials of one recipe, shared out over one lease."""
