"""Measures what the machines of a site give: arithmetic, memory, network, storage, training."""
