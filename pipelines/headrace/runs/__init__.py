"""The control side: runs, leases and steps from request to ledger."""
