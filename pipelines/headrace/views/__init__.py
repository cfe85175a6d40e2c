"""What pages and lists show: runs, suites, leases, costs, put together from ledger and files.

Trials and costs are entered into the ledger before they are shown; nothing else is changed.
"""
