"""Other libraries for the same work, each behind the same few functions."""
