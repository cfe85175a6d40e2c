"""A site file against the real machines: what is wrong, and what to do about it."""
