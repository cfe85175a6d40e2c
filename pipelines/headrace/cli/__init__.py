"""The command line."""

EXIT_ERROR = 1
"""Exit code if the work, a check or headrace itself failed."""
EXIT_USAGE = 2
"""Exit code if the request is invalid."""
EXIT_METRICS = 3
"""Exit code if a model misses `evaluate.min_metrics` or `max_metrics`."""
EXIT_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended."""
