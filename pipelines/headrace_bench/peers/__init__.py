"""Other libraries that do the same work, each behind the same few functions."""
