"""What pages and lists show: runs, suites, leases, costs, put together from ledger and files."""
