"""The stage step: shards to the nodes' own storage."""
