"""Example data and models."""
