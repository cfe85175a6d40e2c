"""Revisions of the schema, one file each."""
