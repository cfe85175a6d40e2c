"""Reading ahead: in order, by threads of one core each, which end with the reader."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.ahead import Payoff, read_ahead, read_ahead_while_it_pays


@pytest.fixture
def two_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_readers_copy_with_one_core_each_and_leave_the_others_alone(two_cores):
    """Else the threads of all readers wait for one another: seen to be 100 times slower."""
    found = list(read_ahead(lambda _: lambda _: torch.get_num_threads(), range(6), 4))
    assert found == [1] * 6
    assert torch.get_num_threads() == 2
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 5])
def test_results_come_in_order(depth):
    assert list(read_ahead(lambda _: str, range(3, 14), depth)) == [str(n) for n in range(3, 14)]


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_each_thread_is_told_its_share(depth):
    shares = []

    def begin(share):
        shares.append(list(share))
        return str

    list(read_ahead(begin, range(10), depth))
    assert sorted(number for share in shares for number in share) == list(range(10))
    assert len(shares) == -(-depth // 2)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_more_than_asked_for_is_read_ahead(depth):
    began = []
    results = read_ahead(lambda _: began.append, range(100), depth)
    next(results)
    results.close()  # all readers have ended now
    assert len(began) <= depth + 1


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_an_error_comes_in_its_turn_and_readers_end(depth):
    def read(number):
        if number == 7:
            raise LookupError("seven")
        return number

    results = read_ahead(lambda _: read, range(20), depth)
    assert [next(results) for _ in range(7)] == list(range(7))
    with pytest.raises(LookupError, match="seven"):
        next(results)
    assert not [t for t in threading.enumerate() if t.name.startswith("headrace-load")]


class Fickle(Payoff):
    """Changes its mind after each part."""

    def saw(self, read_s, worked_s):
        assert read_s >= 0
        assert worked_s >= 0
        self.is_ahead = not self.is_ahead


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_results_come_in_order_however_often_reading_ahead_begins_and_ends(depth):
    results = list(read_ahead_while_it_pays(lambda _: str, range(3, 24), depth, Fickle()))
    assert results == [str(number) for number in range(3, 24)]
    assert not [t for t in threading.enumerate() if t.name.startswith("headrace-load")]


def test_parts_are_read_here_while_nobody_works_on_them():
    payoff = Payoff()
    while payoff.is_ahead:
        payoff.saw(read_s=1.0, worked_s=0.01)
    threads = read_ahead_while_it_pays(
        lambda _: lambda _: threading.current_thread(), range(5), 4, payoff
    )
    assert set(threads) == {threading.current_thread()}


def test_reading_ahead_begins_again_with_the_work():
    payoff = Payoff()
    while payoff.is_ahead:
        payoff.saw(read_s=1.0, worked_s=0.01)
    for _ in range(100):
        payoff.saw(read_s=1.0, worked_s=0.2)
        assert not payoff.is_ahead
    for _ in range(100):
        payoff.saw(read_s=1.0, worked_s=0.3)
    for _ in range(100):
        payoff.saw(read_s=1.0, worked_s=0.2)
        assert payoff.is_ahead


@given(st.lists(st.booleans(), max_size=2000))
@settings(deadline=None, max_examples=20)
def test_changes_become_rare(works):
    payoff, changes = Payoff(), 0
    for is_working in works:
        before = payoff.is_ahead
        payoff.saw(read_s=1.0, worked_s=float(is_working))
        changes += before != payoff.is_ahead
    assert changes <= 8  # 8 parts until the first, then twice as many each time
