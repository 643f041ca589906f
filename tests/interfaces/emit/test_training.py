"""What is to be trained: what is left out is filled in, and what cannot be is refused."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import PacelineError, PlanError, UsageError
from paceline.interfaces.emit import training as names
from paceline.interfaces.emit.docker import dockerfile
from paceline.interfaces.emit.kubernetes import documents, manifest
from paceline.interfaces.emit.slurm import batch_script
from paceline.interfaces.emit.training import ROSTERS, training
from paceline.plans.plan import RECIPES, Plan, check_method
from tests.each import each
from tests.interfaces.emit.test_docker import VERSIONS, instructions
from tests.test_names import HOSTILE

# --- Whatever a job and its arguments are called, a file holds no more of it than their words -------------------------

NAMES = [*HOSTILE, "x\n#SBATCH --wrap=id", "x\nRUN id", "---\nkind: Pod", "x'; id; '", "${HOME}", "!", "--resume=/x"]


def accepted(write: Callable[[str, str | None], str]) -> dict[tuple[str, str | None], str]:
    """Return the files of all names as a job and as its arguments that are not refused, for a stated reason."""
    files = {}
    for name in NAMES:
        for job, arguments in ((f"{name}.py", None), (f"{name}.py:{name}", None), ("job.py", name)):
            with suppress(UsageError):
                files[job, arguments] = write(job, arguments)
    assert len(files) > 12
    return files


def words(job: str, arguments: str | None) -> list[str]:
    return ["train", job, *([] if arguments is None else ["--job-args", arguments])]


@pytest.mark.parametrize("roster", ["ray", "environment"])
def test_a_shell_reads_the_words(roster: str) -> None:
    files = accepted(lambda job, arguments: batch_script(training(job, "ring", roster=roster, job_args=arguments)))
    script = ""
    for (job, arguments), text in files.items():
        (line,) = re.findall(r"^set -- paceline .*$", text, re.MULTILINE)
        script += f"{line}\nprintf '%s\\0' \"$@\" END\n"
        assert text.count("#SBATCH") == batch_script(training("job.py", "ring", roster=roster)).count("#SBATCH")
        in_manifest = manifest(training(job, "ring", roster=roster, job_args=arguments), "x:1")
        found = list(yaml.safe_load_all(in_manifest))
        if roster == "ray":
            assert [each["kind"] for each in found] == ["PersistentVolumeClaim", "ConfigMap", "RayJob"]
            assert line in found[1]["data"]["train.sh"]
        else:
            assert [each["kind"] for each in found] == ["Service", "StatefulSet"]
            assert line in found[1]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    done = subprocess.run(["bash", "-eu"], input=script.encode(), capture_output=True, check=True)
    ray = ["--engine", "ray", "--address", "auto"] if roster == "ray" else []
    read = [part.split("\0")[:-1] for part in done.stdout.decode().split("END\0")[:-1]]
    assert read == [["paceline", *words(*of), *ray] for of in files]


def test_docker_reads_the_words() -> None:
    usual = len(dockerfile("job.py", VERSIONS).splitlines())
    for of, text in accepted(lambda job, arguments: dockerfile(job, VERSIONS, job_args=arguments)).items():
        assert len(text.splitlines()) == usual
        assert json.loads(dict(instructions(text))["CMD"]) == words(*of)
        (said,) = re.findall(r"^#     docker run .*/runs\" \S+ (.*)$", text, re.MULTILINE)
        assert shlex.split(said) == [*words(*of), "--plan", "ring", "--workers", "2"]


#: Texts that YAML's readers take for something else, if they are not quoted.
TRAPS = [
    "", " ", "yes", "No", "on", "null", "~", "true", "1", "1.5", "0x1f", "1e3", "1_000", "12:30:45", "2026-01-01",
    ".inf", "-", "- a", "a: b", "a #b", "#a", "&a", "*a", "!a", "%a", "@a", "`a`", "'a'", '"a"', "{a}", "[a]", "a\\b",
    "a\tb", "a\n", "a\nb\n", "\na\n", " a\nb\n", "a\n\n", "a\n\nb\n", "a\r\nb\n", "a \n b\n", "\u2028\n", "\ufeffa",
    "é", "训练", "\U0001f600", "\x7f", "\x85", "=", "<<", "?", "|", ">", "a:", ":a", "10Gi", "host:29471", "y",
]  # fmt: skip
TEXTS = st.one_of(st.sampled_from(TRAPS), st.text(max_size=12), st.text("a \n:#-'\"\\\t|", max_size=12))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(TEXTS, st.integers(-(10**9), 10**9), st.booleans()),
    lambda part: st.one_of(st.lists(part, max_size=3), st.dictionaries(TEXTS, part, max_size=3)),
    max_leaves=12,
)


@each("text", TRAPS)
def test_a_text_comes_back_as_it_was(text: str) -> None:
    """As a value, as a key, in a list, and in a mapping in a list."""
    value = {"value": text, text: 1, "list": [text, [text], {"key": text}], "map": {"inner": text}}
    assert yaml.safe_load(documents([value])) == value


@settings(max_examples=100)
@given(st.lists(VALUES, min_size=1, max_size=3))
def test_anything_comes_back_as_it_was(values: list[Any]) -> None:
    assert list(yaml.safe_load_all(documents(values, ["a comment"]))) == values


def test_a_text_of_several_lines_is_a_block() -> None:
    assert documents([{"a": {"run": "if x; then\n\n    y\nfi\n"}}]) == (
        "a:\n  run: |\n    if x; then\n\n        y\n    fi\n"
    )


ODD = st.one_of(st.text("aZ09-_. /:'\"\\é\u202e", max_size=90), st.text(max_size=20))


@settings(max_examples=100)
@given(ODD)
def test_any_text_has_a_label(text: str) -> None:
    """Names of pods, Services and volumes are made of it, each with something appended."""
    label = names.label(text)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", label)
    assert len(label) <= names.LONGEST_NAME
    assert names.label(label) == label


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("digits", "digits"),
        ("a/b/My_Net.py", "my-net"),
        ("net.py:large", "net-large"),
        ("3d cnn's.py", "job-3d-cnn-s"),
        ("Müller.py", "muller"),
        ("训练.py", "job"),
        ("x" * 60 + ".py", "x" * 47),
    ],
)
def test_names_of_jobs(job: str, name: str) -> None:
    assert names.job_name(job) == name


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (names.namespace, ["team", "a-1", "1"], ["Team", "-a", "a_b", "a" * 64, "a\nb: c"]),
        (names.image, ["digits:1", "example.org:5000/team/digits@sha256:0a"], ["-x", "a b", "a\n", "é"]),
        (names.partition, ["gpu", "gpu,long_2"], ["gpu long", "a\nb", "x;y"]),
        (names.time_limit, ["90", "90:00", "1:30:00", "2-12", "2-12:00:00"], ["1h", "1:2:3:4", "-5", "1-", "1:00\n2"]),
    ],
)
def test_what_other_programs_would_refuse(check: Callable[[str], str], good: list[str], bad: list[str]) -> None:
    assert [check(text) for text in good] == good
    for text in bad:
        with pytest.raises(UsageError):
            check(text)


def test_what_is_left_out() -> None:
    small = training("experiments/My net.py:big", "downpour", 4)
    assert (small.name, small.nodes, small.cpus, small.gpus, small.memory) == ("my-net-big", 4, 1, 0, None)
    assert small.begins == ["--plan", "downpour:workers=4", "--checkpoint-every", "60s"]
    wide = training("digits", "ring:workers=7,threads=3", nodes=2)
    assert (wide.name, wide.nodes, wide.cpus) == ("digits", 2, 12)
    usual = training("digits", "ring")
    assert usual.begins[:4] == ["--plan", "ring", "--workers", str(usual.plan.workers)]
    one = training("digits", "sequential", nodes=1, roster="environment")
    assert one.begins == ["--plan", "sequential", "--checkpoint-every", "60s"]


@each("roster", ROSTERS)
@each("nodes", [None, 1])
@each("name", sorted(set(RECIPES) - {"table"}))
def test_what_is_written_is_accepted_where_it_runs(name: str, nodes: int | None, roster: str) -> None:
    """The words of the command are those that `paceline train` takes on such nodes, for every plan."""
    plan = Plan.parse(name)
    here = roster == "environment" and (nodes or plan.workers) == 1
    try:
        if not here:
            check_method(plan)
    except PlanError:
        with pytest.raises(PlanError, match="--roster environment --nodes 1"):
            training("digits", name, nodes=nodes, roster=roster)
        return
    found = training("digits", name, nodes=nodes, roster=roster)
    assert found.plan.name == name
    keeps = not plan.traits.no_checkpoints
    assert ("--checkpoint-every" in found.begins) == keeps == found.resumable


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"plan": "dwnpour"}, "did you mean 'downpour'"),
        ({"plan": "ring:workers=0"}, "workers=0"),
        ({"plan": "ring:wrokers=2"}, "did you mean 'workers'"),
        ({"plan": "sequential", "workers": 4}, "--workers 4: plan sequential has 1"),
        ({"nodes": 0}, "--nodes 0: give 1 to 2"),
        ({"nodes": 3}, "--nodes 3: give 1 to 2"),
        ({"workers": 4, "nodes": 2, "roster": "environment"}, "--nodes 2: under --roster environment each node has"),
        ({"cpus": 0}, "--cpus 0: give a whole number from 1"),
        ({"gpus": -1}, "--gpus -1: give a whole number from 0"),
        ({"memory": 0}, "--memory 0: give a whole number from 1"),
        ({"roster": "rai"}, "--roster 'rai': did you mean 'ray'"),
        ({"job": ""}, "JOB '' is empty"),
        ({"job": "a\nb.py"}, "contains a line break"),
        ({"job": "-x.py"}, "write ./-x.py"),
    ],
)
def test_what_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PacelineError) as error:
        training(**({"job": "job.py", "plan": "ring"} | given))
    assert says in str(error.value)
