"""Kills and halts processes of real runs at random, and checks that nothing of it shows."""
