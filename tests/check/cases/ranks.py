# Each case stands between lines `# === name`; a line that must be found ends in `# found: CODE`, and nothing else may be.
# === the first rank goes first
import torch.distributed as dist


def load(rank, download):
    if rank != 0:
        dist.barrier()
    data = download()
    if rank == 0:
        dist.barrier()
    return data


# === the first rank goes first, or there are no ranks
import torch


def load(args, download):
    if args.local_rank not in [-1, 0]:
        torch.distributed.barrier()
    data = download()
    if args.local_rank == 0:
        torch.distributed.barrier()
    return data


# === both sides call the same
import torch.distributed as dist


def share(rank, data, size):
    if rank == 0:
        print("sending")
        dist.broadcast(data, 0)
    else:
        data = size.empty()
        dist.broadcast(data, 0)
    return data


# === inside a function that is called
import torch.distributed as dist


class Trainer:
    def __init__(self):
        self.is_main = dist.get_rank() == 0

    def save(self):
        self.model.write()
        dist.barrier()

    def run(self):
        if self.is_main:
            self.save()  # found: PC501


# === a group of its own
import torch.distributed as dist


def norm(x, rank, ranks, group):
    if rank in ranks:
        dist.all_reduce(x, group=group)


# === a group is made by all
import torch.distributed as dist


def groups(rank, ranks):
    if rank in ranks:
        return dist.new_group(ranks)  # found: PC501
    return None


# === configuration is the same everywhere
import torch.distributed as dist


def step(x, args):
    if args.average and dist.is_initialized():
        dist.all_reduce(x)
    if dist.get_world_size() == 1:
        return x
    dist.barrier()
    return x


# === a broken batch is skipped by one rank
import torch
import torch.distributed as dist


def train(loader, model):
    for batch in loader:
        loss = model(batch)
        if torch.isnan(loss):  # found: PC502
            continue
        dist.all_reduce(loss)


# === mpi4py
from mpi4py import MPI

comm = MPI.COMM_WORLD


def run(data):
    if comm.Get_rank() == 0:
        return comm.gather(data, root=0)  # found: PC501
    return None


# === accelerate
from accelerate import Accelerator

accelerator = Accelerator()


def save(model):
    if accelerator.is_main_process:
        accelerator.wait_for_everyone()  # found: PC501
        accelerator.save_state("x")


# === a deepspeed engine saved by one rank
import deepspeed
import torch.distributed as dist


def save(model_engine, path):
    if dist.get_rank() == 0:
        model_engine.save_checkpoint(path)  # found: PC501


# === a lightning module
import pytorch_lightning as pl


class Net(pl.LightningModule):
    def validation_epoch_end(self, outputs):
        if self.trainer.is_global_zero:
            self.log("loss", outputs[0], sync_dist=True)  # found: PC501


# === the files of a folder in no order
import os
import torch.distributed as dist


def merge(folder, read):
    for name in os.listdir(folder):
        dist.all_reduce(read(name))  # found: PC503


# === the files of a folder sorted
import os
import torch.distributed as dist


def merge(folder, read):
    for name in sorted(os.listdir(folder)):
        dist.all_reduce(read(name))


# === a raise of the first rank
import os
import torch.distributed as dist


def start(path):
    if dist.get_rank() == 0:
        if os.listdir(path):
            raise RuntimeError(path)  # found: PC502
    dist.barrier()


# === an exception of one rank
import torch.distributed as dist


def read(path, parse):
    try:
        data = parse(path)
    except Exception:
        return None  # found: PC502
    dist.barrier()
    return data


# === a ring that receives first
import torch.distributed as dist


def shift(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.recv(x, src=(rank - 1) % n)  # found: PC504
    dist.send(x, dst=(rank + 1) % n)


# === a rank per group
from megatron import mpu
import torch


def report(x):
    if mpu.get_data_parallel_rank() == 0:
        torch.distributed.all_reduce(x, group=mpu.get_tensor_model_parallel_group())


# === only when somebody has something
import torch.distributed as dist


def norm(params, total):
    found = []
    for p in params:
        if p.grad is not None:
            found.append(p)
    if not found:  # found: PC502
        return total
    dist.all_reduce(total)
    return total
