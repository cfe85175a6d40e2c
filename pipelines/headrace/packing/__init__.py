"""The pack step: raw samples to shards."""
