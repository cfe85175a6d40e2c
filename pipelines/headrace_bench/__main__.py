"""`python -m headrace_bench gpu`: `headrace bench` where the package is only on `PYTHONPATH`."""

from headrace_bench.command import app

app(prog_name="headrace bench")
