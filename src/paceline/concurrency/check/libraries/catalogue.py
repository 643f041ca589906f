"""What the checker knows about libraries, as data: what creates a lock or a queue, what waits, what is a collective.

Names are canonical: after `import torch.distributed as dist`, `dist.barrier` is `torch.distributed.barrier`.
"""

from __future__ import annotations

from paceline.concurrency.check import libraries

LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "AsyncLock", "AsyncCondition", "AsyncSemaphore"}
ASYNC_LOCKS = {"AsyncLock", "AsyncCondition", "AsyncSemaphore"}
NON_REENTRANT = {"Lock", "AsyncLock"}  # a thread or task that takes it again waits for itself

# Constructor -> the kind of resource that it creates.
CONSTRUCTORS: dict[str, str] = {
    f"{module}.{name}": kind
    for module, kinds in libraries.table("what makes a resource, and of which kind").items()
    for name, kind in kinds.items()
}

# Modules that re-export another module, and that module.
MODULE_ALIASES: dict[str, str] = libraries.table("modules that re-export another")

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
    (kind, method): whom
    for kind, methods in libraries.table("methods that wait, and for what").items()
    for method, whom in methods.items()
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
_TORCH = libraries.words("collectives of torch.distributed")
_MPI = libraries.words("collectives of MPI")
COLLECTIVES: dict[str, str] = {f"torch.distributed.{name}": name for name in _TORCH}
MPI_COLLECTIVES = {name: name for name in _MPI} | {name.capitalize(): name for name in _MPI}
MPI_COLLECTIVES |= {"Allreduce": "allreduce", "Reduce_scatter": "reduce_scatter"}
#: Methods of a file or window of MPI that every rank must call which has opened it.
MPI_SHARED = libraries.names("collectives of files and windows of MPI")
#: What makes `backward()` a collective: each of these averages the gradients of all ranks in it.
WRAPPERS = {"DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard", "DistributedOptimizer"}
#: What passes gradients between processes by calls, of which each process makes its own: no collectives.
OF_RPC = ("torch.distributed.optim.DistributedOptimizer", "torch.distributed.autograd.")
RETURNS_MODEL = {"to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16", "requires_grad_"}
# Collectives that are methods of an object with such a name, where its class is not known.
OBJECT_COLLECTIVES: dict[str, tuple[str, ...]] = libraries.table("collectives by the name of the object")

# Names that mean a collective whatever module they come from.
COLLECTIVE_NAMES = libraries.names("collectives of any module")
# Those of them that are methods of a tensor or optimizer, which is no group.
OF_TENSORS = {"full_tensor", "consolidate_state_dict"}
# Objects and modules whose collectives are those of all ranks rather than of a group.
WORLD_OBJECTS = libraries.names("objects of all ranks")

# Calls, names, variables and decorators that depend on the rank of the process.
RANK_CALLS = libraries.names("calls that ask for the rank")
RANK_NAMES = libraries.names("names of the rank")
RANK_VARIABLES = libraries.names("environment variables with the rank")
RANK_DECORATORS = libraries.names("decorators of functions for one rank")
# Context managers that all ranks enter, rank 0 first; collectives inside are not compared.
RANK_ZERO_FIRST = {"main_process_first", "local_main_process_first", "rank_zero_first", "torch_distributed_zero_first"}

LOCK_WORDS = ("lock", "mutex", "mutx")
CONDITION_WORDS = ("condition", "_cond", "_cv")
CALLBACK_WORDS = ("callback", "_cb", "listener", "observer", "hook", "handler", "subscriber")

#: What a context of multiprocessing makes as its module does.
CONTEXT_MAKES = libraries.names("what a context of multiprocessing makes")
#: The same of a manager; its queues are no pipes.
MANAGER_MAKES = libraries.names("what a manager of multiprocessing makes")
#: Methods that return the lock of their object.
GIVES_LOCK = libraries.names("methods that return the lock of their object")
