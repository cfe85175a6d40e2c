"""Which nodes pass shards on to each other."""

import pytest

from headrace.staging.step import peer_groups


def test_nodes_of_their_own_hosts_meet_in_one_folder(tmp_path):
    groups = peer_groups(tmp_path, ["10.0.0.1", "10.0.0.2"], "auto")
    assert [group.index for group in groups] == [0, 1]
    assert {group.hosts for group in groups} == {("10.0.0.1", "10.0.0.2")}
    assert len({group.key() for group in groups}) == 1


@pytest.mark.parametrize(
    ("hosts", "mode"),
    [(["a"], "auto"), (["a", "a"], "auto"), (["a", "b", "b"], "auto"), (["a", "b"], "never")],
)
def test_others_stage_alone(tmp_path, hosts, mode):
    assert peer_groups(tmp_path, hosts, mode) == [None] * len(hosts)
    assert not list(tmp_path.iterdir())
