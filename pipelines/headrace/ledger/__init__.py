"""The ledger: rows, queries, migrations; the only home of SQLAlchemy."""
