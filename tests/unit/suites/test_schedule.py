"""Which trial begins where."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.suites.schedule import Needs, Placement, Queue, Room, place

ONE_GPU = Needs(gpus=1)
HALF = Needs(gpus=1, share=0.5)


def _queue(*needs: Needs) -> Queue:
    queue = Queue()
    for number, each in enumerate(needs, 1):
        queue.push(number, each)
    return queue


def _boxes(*gpus: int, cpus: int = 8) -> list[Room]:
    return [Room(f"node-{index}", count, range(cpus)) for index, count in enumerate(gpus)]


def _where(placements: Sequence[Placement]) -> list[tuple[int, list[tuple[str, tuple[int, ...]]]]]:
    return [(each.number, [(seat.node, seat.gpus) for seat in each.seats]) for each in placements]


@pytest.mark.parametrize(
    ("rooms", "needs", "expected"),
    [
        (_boxes(1, 1), [ONE_GPU] * 3, [(1, [("node-0", (0,))]), (2, [("node-1", (0,))])]),
        (
            _boxes(2),
            [HALF] * 5,
            [(1, [("node-0", (0,))]), (2, [("node-0", (1,))]), (3, [("node-0", (0,))]),
             (4, [("node-0", (1,))])],
        ),
        (_boxes(1, 4), [Needs(gpus=4)], [(1, [("node-1", (0, 1, 2, 3))])]),
        (_boxes(2, 2), [Needs(nodes=2, gpus=2)], [(1, [("node-0", (0, 1)), ("node-1", (0, 1))])]),
        (_boxes(0), [ONE_GPU, Needs(cpus=1)], [(2, [("node-0", ())])]),
        (_boxes(1), [Needs(nodes=2, gpus=1), ONE_GPU], [(2, [("node-0", (0,))])]),
    ],
)  # fmt: skip
def test_trials_are_seated(
    rooms: list[Room], needs: list[Needs], expected: list[tuple[int, list[object]]]
) -> None:
    assert _where(place(_queue(*needs), rooms)) == expected


def test_cpus_are_shared_out() -> None:
    rooms = [Room("node-0", 0, range(4)), Room("node-1", 0, range(4), most=3)]
    placements = place(_queue(*[Needs(cpus=2)] * 9), rooms)
    assert [(seat.node, seat.cpus) for each in placements for seat in each.seats] == [
        ("node-0", (0, 1)), ("node-1", (0,)), ("node-1", (1,)), ("node-0", (2, 3)),
        ("node-1", (2,)),
    ]  # fmt: skip
    (with_gpus,) = place(_queue(HALF), [Room("node-0", 2, range(8))])
    assert with_gpus.seats[0].cpus == (0, 1)
    seats = [*placements[0].seats, *placements[1].seats, *with_gpus.seats]
    assert [seat.node_share for seat in seats] == [0.5, 1 / 3, 0.25]
    (large,) = place(_queue(Needs(cpus=16)), [Room("node-0", 0, range(4))])
    assert large.seats[0].cpus == (0, 1, 2, 3)


def test_the_longest_begin_first_and_the_limit_holds() -> None:
    queue = Queue()
    for number, seconds in enumerate((10.0, 30.0, 20.0, 30.0), 1):
        queue.push(number, ONE_GPU, expected_s=seconds)
    assert [each.number for each in place(queue, _boxes(1, 1, 1), most=2)] == [2, 4]
    queue.reorder(lambda number: {1: 5.0, 3: 1.0}[number])
    assert [each.number for each in place(queue, _boxes(1, 1))] == [1, 3]
    assert len(queue) == 0


def test_the_most_urgent_begin_first_whatever_they_take() -> None:
    queue = Queue()
    for number, (seconds, priority) in enumerate(((10.0, 0), (30.0, 0), (1.0, 2), (5.0, 2)), 1):
        queue.push(number, ONE_GPU, expected_s=seconds, priority=priority)
    queue.push(5, HALF, priority=-1)  # another line
    assert [each.number for each in place(queue, _boxes(1))] == [4]
    queue.reorder(lambda number: float(number))
    queue.push(1, ONE_GPU, priority=1)
    assert [each.number for each in place(queue, _boxes(1, 1, 1, 1))] == [3, 1, 2, 5]


def test_a_trial_avoids_nodes_where_it_failed_while_there_are_others() -> None:
    queue = Queue()
    queue.push(1, ONE_GPU, avoids=["node-0"])
    queue.push(2, ONE_GPU)
    assert _where(place(queue, _boxes(2, 1))) == [
        (1, [("node-1", (0,))]),
        (2, [("node-0", (0,))]),
    ]
    queue.push(1, ONE_GPU, avoids=["node-0"])
    assert _where(place(queue, _boxes(1))) == [(1, [("node-0", (0,))])]
    queue.push(1, ONE_GPU, avoids=["m-0"])
    again = [Room("node-0", 1, range(2), machine="m-9"), Room("node-1", 2, (), machine="m-0")]
    assert _where(place(queue, again)) == [(1, [("node-0", (0,))])]  # another machine by now


def test_a_trial_goes_where_its_data_lies_and_there_is_time_for_it() -> None:
    rooms = _boxes(2, 3, 2, 3)
    rooms[0].is_staged = rooms[1].is_staged = True
    rooms[1].left_s, rooms[3].left_s = 100.0, 1.0
    queue = Queue()
    for number, seconds in ((1, 300.0), (2, 200.0), (3, 150.0), (4, 120.0), (5, 90.0), (6, 9.0)):
        queue.push(number, ONE_GPU, expected_s=seconds)
    queue.push(7, Needs(nodes=3, gpus=3))  # node-3 is about to go, and its place is not kept
    assert _where(place(queue, rooms)) == [
        (1, [("node-0", (0,))]), (2, [("node-0", (1,))]),  # data and time
        (3, [("node-2", (0,))]), (4, [("node-2", (1,))]),  # time, but no data
        (5, [("node-1", (0,))]), (6, [("node-1", (1,))]),
    ]  # fmt: skip
    queue.push(8, ONE_GPU, expected_s=1000.0)
    assert _where(place(queue, rooms)) == [(8, [("node-1", (2,))])]  # better than not at all
    queue.push(9, ONE_GPU)
    assert place(queue, rooms) == []  # there is room on node-3 only


def test_a_large_trial_is_not_overtaken_for_ever() -> None:
    rooms = _boxes(2)
    queue = _queue(ONE_GPU, Needs(gpus=2), *[ONE_GPU] * 6)
    running = place(queue, rooms)
    begun = [each.number for each in running]
    assert begun == [1]  # the second GPU is kept for the trial that takes both
    while running:
        done = running.pop(0)
        for seat in done.seats:
            rooms[0].give_back(seat)
        more = place(queue, rooms)
        begun += [each.number for each in more]
        running += more
    assert begun == list(range(1, 9))


def test_trials_that_were_dropped_or_pushed_again_begin_once() -> None:
    queue = _queue(ONE_GPU, ONE_GPU, ONE_GPU)
    queue.drop(1)
    queue.push(2, HALF)
    assert (1 in queue, 2 in queue, len(queue)) == (False, True, 2)
    assert sorted(each.number for each in place(queue, _boxes(4))) == [2, 3]
    assert place(queue, _boxes(4)) == []


def test_a_trial_on_several_nodes_takes_them_whole() -> None:
    rooms = _boxes(1, 1, 1)
    (single,) = place(_queue(ONE_GPU), rooms)
    across = Needs(nodes=2, gpus=1, alone=True)
    (gang,) = place(_queue(across), rooms)
    assert [(seat.node, seat.gpus, len(seat.cpus)) for seat in gang.seats] == [
        ("node-1", (0,), 8), ("node-2", (0,), 8),
    ]  # fmt: skip
    assert single.seats[0].node == "node-0"
    assert place(_queue(across, Needs(cpus=1)), rooms) == []  # nothing overtakes it on its nodes


NEEDS = st.builds(
    Needs,
    nodes=st.integers(1, 2),
    gpus=st.integers(0, 4),
    share=st.sampled_from([1.0, 1 / 2, 1 / 3]),
    cpus=st.integers(1, 6),
    alone=st.booleans(),
)
ROOMS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 8), st.one_of(st.none(), st.integers(1, 3))),
    min_size=1,
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            NEEDS,
            st.sampled_from([0.0, 1.0, 5.0]),
            st.sets(st.integers(0, 3)),
            st.integers(-1, 1),
        )
    ),
    ROOMS,
    st.data(),
)
def test_nothing_is_given_twice_and_nothing_starves(
    trials: list[tuple[Needs, float, set[int], int]],
    sizes: list[tuple[int, int, int | None]],
    data: st.DataObject,
) -> None:
    rooms = [
        Room(f"node-{index}", gpus, range(cpus), most)
        for index, (gpus, cpus, most) in enumerate(sizes)
    ]
    queue, able = Queue(), set()
    urgencies = {number: trial[3] for number, trial in enumerate(trials, 1)}
    for number, (needs, expected_s, avoids, priority) in enumerate(trials, 1):
        names = [f"node-{n}" for n in avoids]
        queue.push(number, needs, expected_s=expected_s, avoids=names, priority=priority)
        if sum(room.could(needs) for room in rooms) >= needs.nodes:
            able.add(number)
    running: list[Placement] = []
    begun: set[int] = set()
    while True:
        fresh = place(queue, rooms)
        assert not begun & {each.number for each in fresh}
        told = [urgencies[each.number] for each in fresh]
        assert told == sorted(told, reverse=True)
        begun |= {each.number for each in fresh}
        running += fresh
        _check_shares(running, sizes)
        if not running:
            break
        ended = running.pop(data.draw(st.integers(0, len(running) - 1)))
        for seat in ended.seats:
            next(room for room in rooms if room.name == seat.node).give_back(seat)
    assert begun == able


def _check_shares(running: list[Placement], sizes: list[tuple[int, int, int | None]]) -> None:
    seats = [seat for each in running for seat in each.seats]
    for index, (gpus, cpus, most) in enumerate(sizes):
        here = [seat for seat in seats if seat.node == f"node-{index}"]
        for gpu in range(gpus):
            assert sum(seat.share for seat in here if gpu in seat.gpus) <= 1 + 1e-6
        alone = [cpu for seat in here for cpu in seat.cpus]
        assert len(alone) == len(set(alone)) <= cpus
        assert all(gpu < gpus for seat in here for gpu in seat.gpus)
        assert most is None or sum(not seat.gpus for seat in here) <= most
    for each in running:
        assert len({seat.node for seat in each.seats}) == len(each.seats)
