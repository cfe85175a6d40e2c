"""Migrations of the ledger, run by `headrace.ledger.migrate`."""
