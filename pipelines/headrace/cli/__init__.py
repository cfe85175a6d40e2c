"""The command line."""

EXIT_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended."""
