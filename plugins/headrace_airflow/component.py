"""Runs one component of Airflow: `python -m headrace_airflow.component scheduler …`.

As `python -m airflow` does, but it ends quickly, see `headrace.processes.identity.end_quickly`.
"""

from __future__ import annotations

from headrace.processes.identity import end_quickly


def main() -> None:
    """Entry point: the exit code is that of the component."""
    from airflow.__main__ import main as run

    end_quickly()
    run()


if __name__ == "__main__":
    main()
