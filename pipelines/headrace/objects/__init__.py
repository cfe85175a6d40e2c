"""Folders and object stores behind one protocol."""
