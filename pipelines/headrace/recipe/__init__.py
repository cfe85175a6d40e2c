"""Recipes and sites: models, loading, overrides, JSON schema."""
