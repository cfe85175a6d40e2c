"""Sources of raw samples, one module a form; `open` finds out which."""
