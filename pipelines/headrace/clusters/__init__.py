"""Leases: backends, host, fan-out; the only home of Dask."""
