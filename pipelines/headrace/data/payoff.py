"""Whether reading ahead pays: only where somebody works on what was read."""

from __future__ import annotations

_PAYS = 0.25
_STILL_PAYS = 0.1
_FEW = 8


class Payoff:
    """Compares the work on what was read with the time that reading takes.

    Where nobody works, nothing can be done meanwhile, and what waits only drives out of the
    processor's caches what is read next. Copies out of memory are then faster one at a time, by all
    cores, into memory that was just used.

    Attributes:
        is_ahead: Whether reading ahead pays, as far as seen; it does until something else is seen.
    """

    def __init__(self) -> None:
        self.is_ahead = True
        self._worked_s = 0.0
        self._read_s = 0.0
        self._num_parts = 0
        self._num_enough = _FEW

    def saw(self, read_s: float, worked_s: float) -> None:
        """Take note of a part.

        Args:
            read_s: Time that reading it took, or that it was waited for.
            worked_s: Time until the next one was asked for.
        """
        self._read_s += read_s
        self._worked_s += worked_s
        self._num_parts += 1
        if self._num_parts == self._num_enough:
            self._decide()

    def _decide(self) -> None:
        least = _STILL_PAYS if self.is_ahead else _PAYS
        pays = self._worked_s >= least * self._read_s
        if pays != self.is_ahead:
            self.is_ahead = pays
            self._num_enough *= 2  # what was read ahead is lost at a change: it must not come often
        self._worked_s = self._read_s = 0.0
        self._num_parts = 0
