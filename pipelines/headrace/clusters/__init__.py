"""Leases: machines, host, calls on nodes; the only home of Dask."""
