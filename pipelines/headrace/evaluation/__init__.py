"""The evaluate step: predictions, metrics, report."""
