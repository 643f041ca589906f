"""Servers are placed on the nodes with which a run begins, and those that join later get servers without a shard."""

from __future__ import annotations

from paceline.runtime.engines.cluster.servers.node_servers import Placement


def test_a_run_that_begins_with_all_its_nodes() -> None:
    placement = Placement(nodes=3, shards=2, copies=2, present=3)
    assert placement.members() == [(0, 1), (4, 2)]
    assert [placement.on(node) for node in range(3)] == [[(0, 0)], [(1, 0), (4, 1)], [(2, 1)]]
    assert [placement.spares(node) for node in range(3)] == [1, 2, 1], "as many as the node that was lost had"


def test_a_run_that_begins_with_one_of_them() -> None:
    placement = Placement(nodes=8, shards=2, copies=2, present=1)
    assert placement.members() == [(0,), (8,)]
    assert placement.on(5) == []
    assert placement.spares(5) == 2, "one for each shard, so that the desk finds a backup for it"
