"""What the checker knows about libraries, as data: what creates a lock or a queue, what waits, what is a collective.

Names are canonical: after `import torch.distributed as dist`, `dist.barrier` is `torch.distributed.barrier`.
"""

from __future__ import annotations

LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "AsyncLock", "AsyncCondition", "AsyncSemaphore"}
ASYNC_LOCKS = {"AsyncLock", "AsyncCondition", "AsyncSemaphore"}
NON_REENTRANT = {"Lock", "AsyncLock"}  # a thread or task that takes it again waits for itself

_THREADING = {
    "Lock": "Lock",
    "RLock": "RLock",
    "Condition": "Condition",
    "Semaphore": "Semaphore",
    "BoundedSemaphore": "Semaphore",
    "Event": "Event",
    "Thread": "Thread",
    "Timer": "Thread",
    "Barrier": "Barrier",
    "local": "Local",
}
_PROCESSES = {
    "Lock": "Lock",
    "RLock": "RLock",
    "Condition": "Condition",
    "Semaphore": "Semaphore",
    "BoundedSemaphore": "Semaphore",
    "Event": "ProcessEvent",
    "Process": "Process",
    "Queue": "ProcessQueue",
    "JoinableQueue": "ProcessQueue",
    "SimpleQueue": "ProcessQueue",
    "Pool": "Pool",
    "Barrier": "Barrier",
    "Pipe": "Pipe",
}
_ASYNCIO = {
    "Lock": "AsyncLock",
    "Condition": "AsyncCondition",
    "Semaphore": "AsyncSemaphore",
    "BoundedSemaphore": "AsyncSemaphore",
    "Event": "AsyncEvent",
    "Queue": "AsyncQueue",
    "PriorityQueue": "AsyncQueue",
    "LifoQueue": "AsyncQueue",
    "Barrier": "AsyncBarrier",
}
_TRIO = {
    "Lock": "AsyncLock",
    "StrictFIFOLock": "AsyncLock",
    "Condition": "AsyncCondition",
    "Event": "AsyncEvent",
    "Semaphore": "AsyncSemaphore",
    "CapacityLimiter": "AsyncSemaphore",
}

# Constructor -> the kind of resource that it creates.
CONSTRUCTORS: dict[str, str] = {
    **{f"threading.{name}": kind for name, kind in _THREADING.items()},
    **{f"multiprocessing.{name}": kind for name, kind in _PROCESSES.items()},
    **{f"asyncio.{name}": kind for name, kind in _ASYNCIO.items()},
    **{f"{library}.{name}": kind for library in ("trio", "anyio") for name, kind in _TRIO.items()},
    "thread.allocate_lock": "Lock",
    "_thread.allocate_lock": "Lock",
    "_thread.RLock": "RLock",
    "queue.Queue": "Queue",
    "queue.LifoQueue": "Queue",
    "queue.PriorityQueue": "Queue",
    "queue.SimpleQueue": "SimpleQueue",
    "Queue.Queue": "Queue",
    "Queue.LifoQueue": "Queue",
    "Queue.PriorityQueue": "Queue",
    "multiprocessing.pool.ThreadPool": "Pool",
    "concurrent.futures.ThreadPoolExecutor": "Executor",
    "concurrent.futures.ProcessPoolExecutor": "Executor",
    "concurrent.futures.thread.ThreadPoolExecutor": "Executor",
    "concurrent.futures.Future": "Future",
    "subprocess.Popen": "Popen",
    **{f"{qt}.QtCore.QMutex": "Lock" for qt in ("PyQt5", "PyQt6", "PySide2", "PySide6", "qtpy", "PyQt4")},
    **{f"{qt}.QtCore.QRecursiveMutex": "RLock" for qt in ("PyQt5", "PyQt6", "PySide2", "PySide6", "qtpy")},
}

# Modules that re-export another module, and that module.
MODULE_ALIASES = {
    "torch.multiprocessing": "multiprocessing",
    "multiprocessing.queues": "multiprocessing",
    "multiprocessing.synchronize": "multiprocessing",
    "asyncio.queues": "asyncio",
    "asyncio.locks": "asyncio",
    "billiard": "multiprocessing",
    "multiprocess": "multiprocessing",
    "torch.distributed.distributed_c10d": "torch.distributed",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "torch.distributed.fsdp",
    "deepspeed.comm": "torch.distributed",
    "deepspeed.comm.comm": "torch.distributed",
    "accelerate.accelerator": "accelerate",
    "accelerate.state": "accelerate",
    "pytorch_lightning": "lightning",
    "lightning.pytorch": "lightning",
    "lightning.fabric": "lightning",
    "lightning_fabric": "lightning",
    "transformers.trainer": "transformers",
    "horovod.tensorflow.keras": "horovod.torch",
    "horovod.tensorflow": "horovod.torch",
    "horovod.keras": "horovod.torch",
    "horovod.mxnet": "horovod.torch",
    "ray.air.session": "ray.train",
    "thread": "_thread",
    "dummy_threading": "threading",
}

QUEUES = {"Queue", "ProcessQueue", "AsyncQueue"}  # what may have a size
THREAD_QUEUES = ("Queue", "SimpleQueue", "ProcessQueue")  # whose `get` blocks its thread
PUTS = ("put", "put_nowait")
THREAD_EVENTS = ("Event", "ProcessEvent")
EVENTS = (*THREAD_EVENTS, "AsyncEvent")

# What a blocking call waits for: who has to do what.
PUT_ITEM = "a producer to put an item"
TAKE_ITEM = "a consumer to take an item"
ITEMS_DONE = "every item to be marked done"
NOTIFY = "another thread to notify"

# (kind of resource, method) -> what the call waits for.
WAITS: dict[tuple[str, str], str] = {
    ("Thread", "join"): "the thread to end",
    ("Process", "join"): "the process to end",
    ("Queue", "join"): ITEMS_DONE,
    ("ProcessQueue", "join"): ITEMS_DONE,
    ("Queue", "get"): PUT_ITEM,
    ("SimpleQueue", "get"): PUT_ITEM,
    ("ProcessQueue", "get"): PUT_ITEM,
    ("Event", "wait"): "another thread to set the event",
    ("ProcessEvent", "wait"): "another process to set the event",
    ("Barrier", "wait"): "every party to reach the barrier",
    ("Executor", "shutdown"): "every submitted task to end",
    ("Pool", "join"): "every worker of the pool to end",
    ("Future", "result"): "the task to end",
    ("Future", "exception"): "the task to end",
    ("Popen", "wait"): "the child process to end",
    ("Popen", "communicate"): "the child process to end",
}

# The same for calls that a coroutine awaits.
PAUSES: dict[tuple[str, str], str] = {
    ("AsyncEvent", "wait"): "another task to set the event",
    ("AsyncQueue", "get"): PUT_ITEM,
    ("AsyncQueue", "join"): ITEMS_DONE,
}

_GETS, _SETS, _NOTIFIES = ("get", "get_nowait"), ("set",), ("notify", "notify_all", "notifyAll")

# (kind of resource, method) -> the methods of the same resource that end such a wait.
WAKES: dict[tuple[str, str], tuple[str, ...]] = {
    **{(kind, "wait"): _SETS for kind in EVENTS},
    **{(kind, "get"): PUTS for kind in (*THREAD_QUEUES, "AsyncQueue")},
    **{(kind, "put"): _GETS for kind in QUEUES},
    **{(kind, "join"): ("task_done",) for kind in QUEUES},
    **{(kind, how): _NOTIFIES for kind in ("Condition", "AsyncCondition") for how in ("wait", "wait_for")},
}

# Collectives, which every rank of a group must call in the same order -> the name under which they are compared.
_TORCH = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single",
    "barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "new_group", "new_subgroups",
    "all_reduce_coalesced", "all_gather_coalesced", "_all_gather_base", "_reduce_scatter_base",
    "init_process_group", "split_group", "init_device_mesh",
)  # fmt: skip
_MPI = (
    "barrier", "bcast", "scatter", "gather", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan",
    "reduce_scatter", "reduce_scatter_block", "scatterv", "gatherv", "allgatherv", "alltoallv", "alltoallw", "split",
    "split_type", "dup", "create", "create_cart", "create_graph", "ibarrier", "ibcast", "ireduce", "iallreduce",
    "iallgather", "igather", "iscatter", "sendrecv",
)  # fmt: skip
COLLECTIVES: dict[str, str] = {f"torch.distributed.{name}": name for name in _TORCH}
MPI_COLLECTIVES = {name: name for name in _MPI} | {name.capitalize(): name for name in _MPI}
MPI_COLLECTIVES |= {"Allreduce": "allreduce", "Reduce_scatter": "reduce_scatter"}
#: Methods of a file or window of MPI that every rank must call which has opened it.
MPI_SHARED = {
    "Write_all",
    "Read_all",
    "Write_at_all",
    "Read_at_all",
    "Write_ordered",
    "Read_ordered",
    "Set_view",
    "Set_size",
    "Fence",
}
#: What makes `backward()` a collective: each of these averages the gradients of all ranks in it.
WRAPPERS = {"DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard", "DistributedOptimizer"}
#: What passes gradients between processes by calls, of which each process makes its own: no collectives.
OF_RPC = ("torch.distributed.optim.DistributedOptimizer", "torch.distributed.autograd.")
RETURNS_MODEL = {"to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16", "requires_grad_"}
# Collectives that are methods of an object with such a name, where its class is not known.
_ENGINE = ("save_checkpoint", "load_checkpoint", "save_16bit_model", "backward", "step", "train_batch")
_MODULE = ("all_gather", "log", "log_dict")
OBJECT_COLLECTIVES: dict[str, tuple[str, ...]] = {
    "accelerator": (
        "wait_for_everyone",
        "gather",
        "gather_for_metrics",
        "reduce",
        "pad_across_processes",
        "save_state",
        "load_state",
        "get_state_dict",
    ),
    "partial_state": ("wait_for_everyone",),
    "fabric": ("barrier", "all_gather", "all_reduce", "broadcast"),
    "trainer": ("save_checkpoint", "save_model", "evaluate", "predict", "validate", "test", "fit", "train"),
    "pl_module": _MODULE,
    "lightning_module": _MODULE,
    "model_engine": _ENGINE,
    "ds_engine": _ENGINE,
    "strategy": ("barrier", "broadcast", "all_gather", "reduce", "reduce_boolean_decision"),
}

# Names that mean a collective whatever module they come from.
COLLECTIVE_NAMES = {"all_reduce", "allreduce", "all_gather", "allgather", "all_gather_object", "reduce_scatter",
                "broadcast_object_list", "wait_for_everyone", "barrier", "all_to_all", "broadcast_object",
                "gather_object", "sync_global_devices", "reduce_dict", "all_gather_list", "synchronize_processes",
                "run_on_main", "dist_barrier", "block_all", "all_reduce_dict",
                "summon_full_params", "GatheredParameters", "unwrap_model_for_generation",
                   "get_model_state_dict", "get_optimizer_state_dict", "full_optim_state_dict", "full_tensor",
                   "consolidate_state_dict", "set_model_state_dict"}  # fmt: skip
# Those of them that are methods of a tensor or optimizer, which is no group.
OF_TENSORS = {"full_tensor", "consolidate_state_dict"}
# Objects and modules whose collectives are those of all ranks rather than of a group.
WORLD_OBJECTS = {"dist", "distributed", "comm", "comms", "misc", "coordinator", "parallel", "hvd", "bps", "xm", "ops",
           "env", "backend", "self", "engine", "model_engine", "dist_manager", "context", "ctx"}  # fmt: skip

#: A file without any of these words has no ranks.
RANK_WORDS = ("torch", "mpi4py", "accelerat", "lightning", "horovod", "deepspeed", "dist.", "distributed", "fabric",
              "multihost", "collective", "transformers", "ray.train")  # fmt: skip
# Calls, names, variables and decorators that depend on the rank of the process.
RANK_CALLS = {"get_rank", "Get_rank", "get_local_rank", "is_main_process", "is_rank_0",
              "is_rank_zero", "is_master", "is_global_zero", "process_index", "local_rank", "get_node_rank",
              "is_main_rank", "is_master_process", "is_local_main_process", "is_last_rank", "global_rank",
              "is_leader_rank", "is_world_process_zero", "is_local_process_zero", "is_coordinator_rank",
              "get_world_rank", "get_process_index", "get_dist_rank", "is_rank_zero_process",
              "is_primary", "is_primary_process", "is_rank_0_process", "is_main", "is_chief", "is_leader",
              "is_first_rank", "is_rank0", "if_main_process"}  # fmt: skip
RANK_NAMES = {"rank", "local_rank", "global_rank", "world_rank", "process_index", "local_process_index", "node_rank",
              "is_main_process", "is_local_main_process", "is_global_zero", "is_rank_zero", "is_master",
              "is_main", "myrank", "my_rank", "mpi_rank", "is_master_process", "is_world_process_zero",
              "rank_zero", "rank0", "is_rank0", "is_root", "is_chief", "is_leader", "main_process", "is_primary",
              "is_first_rank", "dp_rank", "tp_rank", "pp_rank", "data_parallel_rank", "is_main_rank",
              "is_rank_0", "is_last_process", "rank_id", "dist_rank", "proc_id", "is_primary_process",
              "is_rank_zero_process", "is_local_rank_0", "is_local_rank_zero", "process_rank", "worker_rank",
              "shard_rank", "is_rank0_process", "ddp_rank", "ddp_local_rank", "world_process_zero"}  # fmt: skip
RANK_VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK",
                  "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "GLOBAL_RANK",
                  "NODE_RANK", "GROUP_RANK", "LIGHTNING_RANK"}  # fmt: skip
RANK_DECORATORS = {
    "rank_zero_only",
    "main_process_only",
    "on_main_process",
    "master_only",
    "is_main_process_only",
    "on_local_main_process",
    "rank_zero",
}
# Context managers that all ranks enter, rank 0 first; collectives inside are not compared.
RANK_ZERO_FIRST = {"main_process_first", "local_main_process_first", "rank_zero_first", "torch_distributed_zero_first"}

LOCK_WORDS = ("lock", "mutex", "mutx")
CONDITION_WORDS = ("condition", "_cond", "_cv")
CALLBACK_WORDS = ("callback", "_cb", "listener", "observer", "hook", "handler", "subscriber")

#: What a context of multiprocessing makes as its module does.
CONTEXT_MAKES = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Process", "Queue",
                 "JoinableQueue", "SimpleQueue", "Pool", "Barrier", "Pipe"}  # fmt: skip
