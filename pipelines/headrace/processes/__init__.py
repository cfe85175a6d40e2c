"""Processes of this machine: who they are, how they end together, how one is kept and asked."""
