"""`lifetime: auto`: how much time a lease asks for, chosen from what earlier runs took."""
