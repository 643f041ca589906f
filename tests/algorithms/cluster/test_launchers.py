"""What launchers set, as their documentation and a run of each have it, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.algorithms.cluster.launchers import HEAD_PORT, PORTS, Launched, first_host, from_environment, from_mpiexec
from paceline.errors import UsageError
from tests.each import each

TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
STORE = ("node1", 29500)
WITHOUT_STORE = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NODELIST": "node[003-007,9]",
    "SLURM_STEP_NODELIST": "node[004-005]",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "5",
}
STATEFUL_SET = {"HOSTNAME": "digits-3", "PACELINE_NODES": "4", "PACELINE_HEAD": "digits-0.digits:29471"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, Launched("torchrun", 2, 4, 0, "node1", 0, STORE)),
        (WITHOUT_STORE, Launched("torchrun", 2, 4, 0, "node1", 29501)),
        (TORCHRUN | {"PACELINE_HEAD": "h:1"}, Launched("torchrun", 2, 4, 0, "h", 1)),
        (SRUN, Launched("srun", 3, 4, 1, "node004", 30190)),
        (SRUN | {"MASTER_PORT": "7000"}, Launched("srun", 3, 4, 1, "node004", 7001)),
        (SRUN | TORCHRUN, Launched("torchrun", 2, 4, 0, "node1", 0, STORE)),  # torchrun started by srun
        (MPICH, Launched("mpiexec", 1, 2, 1, "127.0.0.1", HEAD_PORT)),  # all ranks are on this machine
        (OPEN_MPI, Launched("mpiexec", 5, 8, 1, None, HEAD_PORT)),
        (OPEN_MPI | {"PACELINE_HEAD": "h:1"}, Launched("mpiexec", 5, 8, 1, "h", 1)),
        (STATEFUL_SET, Launched("kubernetes", 3, 4, 0, "digits-0.digits", 29471)),
        (STATEFUL_SET | {"HOSTNAME": "a-b-0.a-b.team.svc"}, Launched("kubernetes", 0, 4, 0, "digits-0.digits", 29471)),
        (
            {"PACELINE_RANK": "1", "PACELINE_NODES": "2", "PACELINE_HEAD": "[fd00::1]:9"},
            Launched("environment", 1, 2, 0, "fd00::1", 9),
        ),
        ({"PACELINE_RANK": "0", "PACELINE_NODES": "1"}, Launched("environment", 0, 1, 0, "127.0.0.1", HEAD_PORT)),
    ],
)
def test_each_launcher(environ: dict[str, str], expected: Launched) -> None:
    assert from_environment(environ) == expected


def test_a_process_that_was_started_by_itself() -> None:
    assert from_environment({}) is None
    assert from_environment({"HOSTNAME": "node-3", "MASTER_PORT": "65535", "RANK": ""}) is None
    # srun --mpi=pmix sets PMIX_RANK; without the rest of its variables nothing says how many there are
    assert from_environment({"PMIX_RANK": "2"}) is None


def test_a_batch_script_is_no_rank() -> None:
    """Slurm sets a rank and a number of tasks in the batch script too, where no other task runs."""
    batch = {name: text for name, text in SRUN.items() if "STEP" not in name} | {"SLURM_PROCID": "0"}
    assert from_environment(batch) is None


def test_an_mpiexec_inside_a_step_of_srun_counts_by_itself() -> None:
    inside = from_environment(SRUN | {"PMI_RANK": "6", "PMI_SIZE": "8"})
    assert inside == Launched("mpiexec", 6, 8, 0, None, HEAD_PORT)
    # what srun --mpi=pmi2 sets is its own
    same = from_environment(SRUN | {"PMI_RANK": "3", "PMI_SIZE": "4"})
    assert same == from_environment(SRUN)


def test_what_paceline_is_told_comes_first() -> None:
    told = {"PACELINE_RANK": "7", "PACELINE_NODES": "9", "PACELINE_HEAD": "head"}
    assert from_environment(TORCHRUN | told) == Launched("environment", 7, 9, 0, "head", 29501)
    assert from_environment(TORCHRUN | {"PACELINE_NODES": "3"}) == Launched("torchrun", 2, 3, 0, "node1", 0, STORE)
    assert from_environment(SRUN | {"PACELINE_RANK": "0"}) == Launched("srun", 0, 4, 1, "node004", 30190)


def test_the_port_follows_from_the_job_and_is_that_of_all_its_ranks() -> None:
    names = [("SLURM_JOB_ID", SRUN), ("SLURM_STEP_ID", SRUN), ("PMIX_NAMESPACE", OPEN_MPI), ("PMI_JOBID", MPICH)]
    for name, environ in names:
        found = [from_environment(environ | {name: str(job)}) for job in range(77, 97)]
        ports = [each.port for each in found if each]
        assert len(set(ports)) > 15, name
        assert all(HEAD_PORT <= port < HEAD_PORT + PORTS for port in ports)
    head = from_environment(SRUN | {"PACELINE_HEAD": "node9"})
    assert head
    assert head.head == ("node9", HEAD_PORT)


def test_mpiexec_alone_is_what_the_mpi_engine_asks_for() -> None:
    assert from_mpiexec(TORCHRUN | SRUN) is None
    started = from_mpiexec(TORCHRUN | MPICH)
    assert started is not None
    assert (started.rank, started.nodes) == (1, 2)


@each(
    ("environ", "words"),
    [
        ({"RANK": "1"}, ["RANK is set and WORLD_SIZE is not", "unset RANK"]),
        ({"WORLD_SIZE": "1"}, ["WORLD_SIZE is set and RANK is not"]),
        (TORCHRUN | {"RANK": "4"}, ["RANK says rank 4 and WORLD_SIZE says that there are 4"]),
        (TORCHRUN | {"PACELINE_NODES": "2"}, ["RANK says rank 2 and PACELINE_NODES says that there are 2"]),
        (TORCHRUN | {"WORLD_SIZE": "four"}, ["WORLD_SIZE='four' is not a whole number"]),
        (TORCHRUN | {"RANK": "-1"}, ["RANK='-1'"]),
        (TORCHRUN | {"WORLD_SIZE": "0", "RANK": "0"}, ["WORLD_SIZE=0"]),
        (TORCHRUN | {"MASTER_PORT": "0"}, ["MASTER_PORT=0 is not a port", "PACELINE_HEAD"]),
        (WITHOUT_STORE | {"MASTER_PORT": "65535"}, ["MASTER_PORT=65535, plus 1, is not a port", "PACELINE_HEAD"]),
        (TORCHRUN | {"PACELINE_HEAD": "a:b:c"}, ["PACELINE_HEAD='a:b:c' is not host:port"]),
        (TORCHRUN | {"PACELINE_HEAD": "a:0"}, ["PACELINE_HEAD='a:0' is not a port"]),
        ({**SRUN, "SLURM_PROCID": ""}, ["SLURM_STEP_NUM_TASKS is set and SLURM_PROCID is not"]),
        ({**SRUN, "SLURM_STEP_NODELIST": "node[3-"}, ["SLURM_STEP_NODELIST='node[3-' is not a list of hosts"]),
        ({"PMI_RANK": "0"}, ["PMI_RANK is set and PMI_SIZE is not"]),
        ({"PACELINE_NODES": "4", "HOSTNAME": "box"}, ["PACELINE_NODES=4", "HOSTNAME='box'", "set PACELINE_RANK"]),
        (STATEFUL_SET | {"HOSTNAME": "digits-4"}, ["HOSTNAME says rank 4 and PACELINE_NODES says that there are 4"]),
        ({"PACELINE_RANK": "0"}, ["PACELINE_RANK is set", "set PACELINE_NODES"]),
        ({"PACELINE_HEAD": "a:1"}, ["PACELINE_HEAD is set", "set PACELINE_RANK and PACELINE_NODES"]),
    ],
)
def test_what_is_refused_and_by_which_name(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        from_environment(environ)
    for word in words:
        assert word in str(error.value)


def test_a_head_that_nobody_named_is_missed_when_it_is_needed() -> None:
    launched = from_environment(OPEN_MPI)
    assert launched is not None
    with pytest.raises(UsageError, match="mpiexec does not say on which host rank 0 is: set PACELINE_HEAD"):
        _ = launched.head
    assert Launched("srun", 0, 1, 0, "a", 2).head == ("a", 2)


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("node[003-007,9]", "node003"),
        ("node9", "node9"),
        ("a,b", "a"),
        ("gpu[2,5-8]-ib,login1", "gpu2-ib"),
        ("rack[1-2]n[04-06]", "rack1n04"),
        ("c1.example.org,c2.example.org", "c1.example.org"),
        (" n1\n", "n1"),
    ],
)
def test_the_first_host_of_a_list(nodelist: str, first: str) -> None:
    assert first_host(nodelist) == first


@pytest.mark.parametrize("nodelist", ["", ",a", "node[", "node[]", "node[a]", "node[1-]", "no de", "node]3"])
def test_what_is_no_list_of_hosts(nodelist: str) -> None:
    with pytest.raises(UsageError, match="SLURM_NODELIST"):
        first_host(nodelist)


HOSTS = st.lists(st.tuples(st.sampled_from(["node", "n-", "gpu.x"]), st.integers(0, 1000)), min_size=1, max_size=6)


@given(HOSTS, st.booleans())
def test_a_list_in_short_form_begins_as_the_list_written_out(hosts: list[tuple[str, int]], padded: bool) -> None:
    """Slurm writes hosts of one prefix that follow each other in one bracket."""
    names = [(prefix, f"{number:04}" if padded else str(number)) for prefix, number in hosts]
    short: list[tuple[str, list[str]]] = []
    for prefix, number in names:
        if short and short[-1][0] == prefix:
            short[-1][1].append(number)
        else:
            short.append((prefix, [number]))
    written = ",".join(f"{prefix}[{','.join(numbers)}]" for prefix, numbers in short)
    assert first_host(written) == names[0][0] + names[0][1]


VARIABLES = st.sampled_from(sorted({*TORCHRUN, *SRUN, *MPICH, *OPEN_MPI, *STATEFUL_SET, "PACELINE_RANK"}))
TEXTS = st.one_of(
    st.sampled_from(["", "0", "1", "2", "64", "node[1-3]", "a:1", "x-1"]), st.text("07-:[],an ", max_size=6)
)


@given(st.dictionaries(VARIABLES, TEXTS))
def test_any_environment_is_understood_or_refused(environ: dict[str, str]) -> None:
    """What is refused is refused by the name of a variable that is set."""
    launched, refusal = None, next(iter(environ), "")
    try:
        launched = from_environment(environ)
    except UsageError as error:
        refusal = str(error)
    assert any(name in refusal for name in environ) or not environ
    assert launched is None or 0 <= launched.rank < launched.nodes
