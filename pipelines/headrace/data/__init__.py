"""From shards to batches: order, loader, data module, transforms."""
