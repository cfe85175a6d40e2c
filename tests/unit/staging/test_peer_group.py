"""Which nodes pass shards on to each other."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.staging.peers import PeerGroup, groups_of


def test_nodes_of_their_own_hosts_meet_in_one_folder(tmp_path):
    groups = groups_of(tmp_path, ["10.0.0.1", "10.0.0.2"], "auto")
    assert [group.index for group in groups] == [0, 1]
    assert {group.hosts for group in groups} == {("10.0.0.1", "10.0.0.2")}
    assert len({group.sign("file") for group in groups}) == 1


@pytest.mark.parametrize(
    ("hosts", "mode"),
    [(["a"], "auto"), (["a", "a"], "auto"), (["a", "b", "b"], "auto"), (["a", "b"], "never")],
)
def test_others_stage_alone(tmp_path, hosts, mode):
    assert groups_of(tmp_path, hosts, mode) == [None] * len(hosts)
    assert not list(tmp_path.iterdir())


def _parts(num_shards: int, rooms: list[int]) -> list[set[int]]:
    """Numbers of the shards that each node takes, when it has room for so many."""
    hosts = tuple(f"host-{index}" for index in range(len(rooms)))
    groups = [PeerGroup(folder=Path("x"), hosts=hosts, index=index) for index in range(len(rooms))]
    return [
        set(sorted(range(num_shards), key=group.part)[:room])
        for group, room in zip(groups, rooms, strict=True)
    ]


@settings(max_examples=30)
@given(st.integers(1, 40), st.lists(st.integers(0, 40), min_size=2, max_size=2))
def test_two_nodes_hold_together_as_much_as_they_can(num_shards, rooms):
    held = set().union(*_parts(num_shards, rooms))
    assert len(held) == min(num_shards, sum(min(room, num_shards) for room in rooms))


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 10))
def test_nodes_of_one_size_hold_together_as_much_as_they_can(count, turns, room):
    held = set().union(*_parts(count * turns, [room] * count))
    assert len(held) == min(count * turns, room * count)


def test_what_others_lack_is_taken_from_the_end():
    """The second of three nodes has room for more than its turns."""
    assert _parts(9, [2, 6, 2]) == [{0, 3}, {1, 4, 7, 8, 6, 5}, {2, 5}]
