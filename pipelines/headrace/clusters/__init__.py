"""Leases: launchers, host, calls on nodes; the only home of Dask."""
