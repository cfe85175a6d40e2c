"""The train step: ranks, rendezvous, checkpoints."""
