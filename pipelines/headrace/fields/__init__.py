"""Kinds of fields, one file each: suffixes, first bytes, and how bytes become arrays."""
