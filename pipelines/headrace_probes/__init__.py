"""Measures the performance of a site's machines: arithmetic, memory, network, storage, training."""
