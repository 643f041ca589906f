"""Every place of the package where bytes become objects or code, and who has written the bytes.

A new one fails this test until it stands in the table. None of them may read what comes from a peer over `links.tcp`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "paceline"

#: Functions that run code when they read it, by their last name; those of a module that is named before them.
CALLS = {
    "pickle.load", "pickle.loads", "cloudpickle.load", "cloudpickle.loads", "torch.load", "marshal.loads",
    "torch.jit.load", "torch.export.load", "np.load", "numpy.load", "joblib.load", "dill.loads", "shelve.open",
    "exec", "eval", "runpy.run_path", "runpy.run_module",
}  # fmt: skip
#: The pickles of `multiprocessing`'s pipes, and what imports a file.
METHODS = {
    "exec_module",
    "load_module",
    "recv",
    "recv_bytes",
    "recv_object_list",
    "broadcast_object_list",
    "all_gather_object",
    "scatter_object_list",
    "gather_object",
}
LAST = {call.rpartition(".")[2] for call in CALLS} | METHODS | {"unpack", "unpack_program"}
PIPE = "a process that this one has started, through a pipe that both inherit"
PARENT = "the process that has started this one, through a pipe that both inherit"
USER = "the user, who names the file"
DRIVER = "the driver, through Ray, which runs whatever it is sent"
JOINED = "the machine whose code the person here has typed, and to which that person has said yes"
OWN = "a folder of this user, announced by `announce_code`"
NO_CODE = "reads no code"

WRITTEN_BY = {
    "interfaces/api/comparing/compare_scripts.py:_read_steps:torch.load": "a script of this process; weights_only",
    "interfaces/api/comparing/first_step.py:verify_script:torch.load": "a script of this process; weights_only",
    "interfaces/api/comparing/gloo_shim/sitecustomize.py:<module>:exec_module": "PyTorch's own file",
    "interfaces/api/loading.py:load_run:torch.load": "a run's folder; weights_only, which no code can be put into",
    "interfaces/api/parallel.py:_write:np.load": f"ranks of this user; arrays without objects: {NO_CODE}",
    "interfaces/api/planning/calibration_jobs.py:_main:recv": PARENT,
    "interfaces/api/planning/calibration_jobs.py:_ask:recv": PIPE,
    "interfaces/api/tuning/ranks.py:run_trials:unpack_program": DRIVER,
    "runtime/backend/group.py:recv_anysource:recv": f"a rank of this run, as the numbers of a tensor: {NO_CODE}",
    "runtime/doctor/way.py:_receive:recv": f"bytes of a socket, which are counted: {NO_CODE}",
    "runtime/engines/cluster/children.py:_listen:recv": PIPE,
    "runtime/engines/cluster/group_client.py:_listen:recv": PARENT,
    "runtime/engines/cluster/seat.py:is_deserted:recv": f"bytes of a socket, which are not looked at: {NO_CODE}",
    "runtime/engines/cluster/servers/loop.py:listen:recv": PARENT,
    "runtime/engines/cluster/ray_agent.py:run:unpack_program": DRIVER,
    "runtime/engines/cluster/ray_watch.py:_stay:recv": f"bytes of a socket, which are not looked at: {NO_CODE}",
    "runtime/engines/cluster/servers/helpers.py:run_helper:pickle.loads": PARENT,
    "runtime/engines/cluster/servers/processes.py:run_desk:pickle.loads": PARENT,
    "runtime/engines/cluster/servers/processes.py:run_server:pickle.loads": PARENT,
    "runtime/engines/cluster/servers/processes.py:run_worker:pickle.loads": PARENT,
    "runtime/engines/cluster/worker.py:main:pickle.loads": PARENT,
    "runtime/engines/job_file.py:_read:pickle.load": OWN,
    "runtime/engines/joining/guest.py:enter:unpack_program": JOINED,
    "runtime/engines/local/worker_pool.py:_messages:recv": PIPE,
    "runtime/engines/workers/arena.py:_arena:pickle.loads": PARENT,
    "runtime/engines/workers/process_main.py:main:pickle.loads": PARENT,
    "runtime/engines/workers/state_buffers.py:read:pickle.loads": "a worker of this run, in memory that has no name",
    "errors/arguments.py:_kinds:eval": "annotations in the package's own source",
    "concurrency/explore/child.py:_outcome:pickle.loads": f"{PIPE}; it runs the program that the user names",
    "concurrency/explore/rewriting/importing.py:exec_module:exec_module": USER,
    "concurrency/explore/rewriting/importing.py:run_script:exec": USER,
    "concurrency/explore/interpose/processes.py:_get:pickle.loads": "what the explored program itself has put",
    "concurrency/explore/interpose/processes.py:recv:pickle.loads": "what the explored program itself has sent",
    "concurrency/explore/interpose/processes.py:_sent:pickle.loads": "what the explored program has given a manager",
    "concurrency/explore/ranks/mpi.py:_received:pickle.loads": "what a rank of the explored program has sent",
    "concurrency/explore/ranks/process_group.py:recv_anysource:recv": "a rank of this process, as a tensor",
    "concurrency/explore/session.py:explore:pickle.load": f"{PIPE}; it runs the program that the user names",
    "concurrency/explore/worker.py:main:pickle.load": PARENT,
    "training/jobs/pickling.py:unpack:_Unpacker.load": "its callers, which are in this table",
    "training/jobs/pickling.py:unpack_program:pickle.load": "its callers, which are in this table",
    "training/jobs/loading.py:_module:exec_module": USER,
    "kernels/printers/numpy.py:run:exec": "the package itself, from its own statements",
    "runtime/links/tcp/credentials.py:_by_diag:recv": f"the kernel: {NO_CODE}",
    "training/preparation/recipe.py:load_recipe:runpy.run_path": USER,
    "planning/tuner/varied.py:tuned_job:unpack": OWN,
    "planning/tuner/space.py:read_space:exec": f"{USER}; on resuming, {OWN}",
    "planning/tuner/trials/processes.py:receive:recv": PIPE,
    "planning/tuner/trials/worker.py:_unpacked:pickle.loads": PARENT,
    "planning/tuner/trials/worker.py:_unpacked:unpack": PARENT,
    "planning/tuner/trials/worker.py:report:recv": PARENT,
    "planning/tuner/trials/worker.py:work:recv": PARENT,
    "concurrency/watcher/processes/java.py:ask:recv": f"bytes of a Java process, as text: {NO_CODE}",
    "concurrency/watcher/processes/inject/sitecustomize.py:_run_the_next:exec_module": "Python's file, or the user's",
    "concurrency/watcher/processes/holders.py:_unix_peers:recv": f"the kernel: {NO_CODE}",
}


def loaders(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    unpicklers = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Unpickler") for base in node.bases)
    }
    unpicks = "from paceline.training.jobs.pickling import" in file.read_text(encoding="utf-8")
    name = file.relative_to(SOURCE).as_posix()
    possible = LAST | unpicklers
    for inside, node in _with_function(tree, "<module>"):
        if not isinstance(node, ast.Call):
            continue
        last = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if last not in possible and not last.endswith("Unpickler"):
            continue  # unparsing every call takes seconds
        called = ast.unparse(node.func)
        if called in CALLS or (isinstance(node.func, ast.Attribute) and last in METHODS):
            yield f"{name}:{inside}:{called if called in CALLS else last}"
        elif last in unpicklers or called.endswith("Unpickler"):
            yield f"{name}:{inside}:{last}.load"
        elif unpicks and called in ("unpack", "unpack_program"):
            yield f"{name}:{inside}:{called}"


def _with_function(node: ast.AST, inside: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        within = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else inside
        yield within, child
        yield from _with_function(child, within)


def test_every_loader_stands_in_the_table_with_who_writes_what_it_reads() -> None:
    files = [file for file in SOURCE.rglob("*.py") if "check" not in file.relative_to(SOURCE).parts]
    found = {each for file in files for each in loaders(file)}
    assert (found - set(WRITTEN_BY), set(WRITTEN_BY) - found) == (set(), set())


def test_the_wire_knows_no_pickle() -> None:
    """Nor does what speaks over it: neither frames nor the messages of a tuning."""
    tuning = (SOURCE / f"planning/tuner/{name}.py" for name in ("trials/peers", "state_file"))
    for file in (*(SOURCE / "runtime/links").rglob("*.py"), *tuning):
        imported = {
            name.name.partition(".")[0]
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import)
            for name in node.names
        }
        assert not imported & {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}, file
