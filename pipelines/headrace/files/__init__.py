"""Files of this project: whole or not there, locked, checked, and where they lie."""
