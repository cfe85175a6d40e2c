"""Checkpoints: which there are, how one is read, and weights for others."""
