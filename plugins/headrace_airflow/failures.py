"""Failures of headrace in Airflow's words: tried again, or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.control.leases import RELEASED
from headrace.control.overview import LeaseLook
from headrace.control.reaper import ABANDONED
from headrace.errors import HeadraceError
from headrace.states import StepState
from headrace.steps.records import Failure, StepResult
from headrace_airflow.airflow_api import AirflowException, AirflowFailException
from headrace_airflow.triggers import STOPPED


@contextmanager
def told_to_airflow() -> Iterator[None]:
    """Turn errors of headrace into Airflow's: those that another try cannot heal fail at once."""
    try:
        yield
    except HeadraceError as error:
        if error.failure_class.is_retried:
            raise AirflowException(str(error)) from error
        raise AirflowFailException(str(error)) from None


def failure_of(step: str, result: StepResult, *, is_hopeless: bool = False) -> Exception:
    """The exception that tells Airflow how a step ended.

    Args:
        step: Name of the step.
        result: How it ended, other than well.
        is_hopeless: Whether another attempt would end like this one.
    """
    failure = result.failure
    message = (
        f"Step {step} {result.state.value}: {failure.message if failure else 'no reason given'}"
    )
    if failure is not None and failure.where:
        message += f" ({failure.where})"
    kind = AirflowException if _is_retried(failure) and not is_hopeless else AirflowFailException
    error: Exception = kind(message)
    return error


def lease_failure_of(lease_id: str, seen: LeaseLook) -> Exception:
    """The exception that tells Airflow why a lease is not there.

    Args:
        lease_id: The lease.
        seen: How it stands: neither starting nor ready.
    """
    kind = AirflowFailException if seen.is_refused else AirflowException
    error: Exception = kind(f"Lease {lease_id} is {seen.state.value}: {seen.why}")
    return error


def _is_retried(failure: Failure | None) -> bool:
    return failure is None or failure.failure_class.is_retried


def was_cancelled_for_another_try(result: StepResult) -> bool:
    """Whether Airflow's side ended the step, on behalf of an earlier try of its task.

    A person who asks by `headrace cancel` means the step itself.
    """
    if result.state is not StepState.CANCELLED or result.failure is None:
        return False
    message = result.failure.message
    return any(reason in message for reason in (STOPPED, ABANDONED, RELEASED))
