"""A script for `--ranks 3` that checks what the modelled collectives compute."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
assert world == 3
assert dist.is_initialized()

value = torch.tensor([rank + 1.0, 2.0])
dist.all_reduce(value)
assert value.tolist() == [6.0, 6.0]
value = torch.tensor([rank])
work = dist.all_reduce(value, dist.ReduceOp.MAX, async_op=True)
work.wait()
assert value.item() == 2
dist.reduce(value, 1)
assert value.item() == (6 if rank == 1 else 2)
value = torch.tensor([rank])
dist.broadcast(value, 2)
assert value.item() == 2

parts = [torch.empty(1, dtype=torch.int64) for _ in range(world)]
dist.all_gather(parts, torch.tensor([rank]))
assert torch.cat(parts).tolist() == [0, 1, 2]
joined = torch.empty(6)
dist.all_gather_into_tensor(joined, torch.full((2,), float(rank)))
assert joined.tolist() == [0, 0, 1, 1, 2, 2]
dist.gather(torch.tensor([rank]), parts if rank == 0 else None, dst=0)
mine = torch.empty(1)
dist.scatter(mine, [torch.tensor([10.0 * each]) for each in range(world)] if rank == 0 else None, src=0)
assert mine.item() == 10 * rank
mine = torch.empty(2)
dist.reduce_scatter_tensor(mine, torch.arange(6.0))
assert mine.tolist() == [6.0 * rank, 6.0 * rank + 3]
dist.reduce_scatter(mine, [torch.full((2,), float(each)) for each in range(world)])
assert mine.tolist() == [3.0 * rank, 3.0 * rank]
received = torch.empty(3)
dist.all_to_all_single(received, torch.full((3,), float(rank)))
assert received.tolist() == [0, 1, 2]

objects = [None] * world
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
objects = ["a", 1] if rank == 0 else [None, None]
dist.broadcast_object_list(objects, src=0)
assert objects == ["a", 1]

odd, even = dist.new_group([1]), dist.new_group([0, 2])
value = torch.ones(1)
if rank != 1:
    dist.all_reduce(value, group=even)
    assert value.item() == 2
assert (dist.get_rank(even) == -1) == (rank == 1)

other = torch.empty(1)
requests = dist.batch_isend_irecv(
    [
        dist.P2POp(dist.isend, torch.tensor([float(rank)]), (rank + 1) % world),
        dist.P2POp(dist.irecv, other, (rank - 1) % world),
    ]
)
for request in requests:
    request.wait()
assert other.item() == (rank - 1) % world
dist.monitored_barrier()
dist.barrier()

mesh = dist.device_mesh.init_device_mesh("cpu", (3,), mesh_dim_names=("data",))
assert mesh.get_local_rank() == rank
dist.destroy_process_group()
