"""Files of this project: written atomically, locked, verified, and their layout."""
