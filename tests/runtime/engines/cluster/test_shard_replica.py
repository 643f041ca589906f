"""A worker computes with parameters where they have arrived, and never where others may still arrive."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.runtime.engines.cluster.servers.gradient_side import ShardReplica
from paceline.runtime.engines.cluster.servers.shard_state import GradientVector, vector_pool
from tests.runtime.engines.cluster.stubs import layout_of, small_job


def _replica() -> tuple[ShardReplica, nn.Parameter]:
    job = small_job()
    layout, module = layout_of(job), job.make_model()
    (shard,) = layout.shards
    parameters = list(module.parameters())
    vector = vector_pool(shard, layout, False, None, 0).take()
    return ShardReplica(shard, layout.dtype, parameters, vector), parameters[0]


def test_parameters_are_used_where_they_have_arrived() -> None:
    replica, weight = _replica()
    for number in (1.0, 2.0, 3.0):
        room = replica.values.raw
        room[:] = torch.full_like(replica.values.flat, number).view(torch.uint8).numpy().data
        replica.take(room)
        assert weight.detach().eq(number).all()
        assert weight.data_ptr() == replica.values.flat.data_ptr()


def test_parameters_that_arrived_elsewhere_are_copied_and_the_room_for_the_others_is_given_up() -> None:
    replica, weight = _replica()
    room = replica.values.raw
    body = torch.full_like(replica.values.flat, 5.0).view(torch.uint8).numpy().data
    replica.take(body)
    replica.move()
    room[:] = bytes(len(room))  # the other answer arrives after all
    assert weight.detach().eq(5.0).all()
    assert weight.data_ptr() == replica.values.flat.data_ptr()


@pytest.mark.parametrize("strided", [False, True])
def test_a_large_gradient_is_sent_from_where_it_was_computed(strided: bool) -> None:
    """The same bytes travel, copied or not: a weight whose numbers do not lie side by side is copied."""
    layout = layout_of(small_job(inputs=10_000, outputs=30))
    vector = vector_pool(layout.shards[0], layout, False, None, 0).take()
    assert isinstance(vector, GradientVector)
    weight = torch.randn(10_000, 30).T if strided else torch.randn(30, 10_000)
    for gradients in ([weight, torch.randn(30)], [weight, None], [weight, torch.randn(30)]):
        vector.write(gradients, [], [7])
        sent = b"".join(vector.parts)
        assert len(vector.parts) == (1 if strided or gradients[1] is None else 3)
        vector.bytes[:] = sent  # as it arrives
        given = vector.arrival(0).gradients
        assert all(torch.equal(a, b) for a, b in zip(given, gradients, strict=True) if a is not None and b is not None)
        assert [a is None for a in given] == [b is None for b in gradients]
        assert vector.bases.tolist() == [7]
