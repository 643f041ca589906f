"""The manifests: they keep to the schemas, their parts fit together, and their scripts do what they say."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.algorithms.cluster.launchers import from_environment
from paceline.errors import UsageError
from paceline.interfaces.emit.kubernetes import manifest
from paceline.interfaces.emit.training import ROSTERS, training
from paceline.runtime.runs.record import Status
from tests.interfaces.emit.conftest import Stage

SCHEMA = jsonschema.Draft202012Validator(json.loads((Path(__file__).parent / "schemas/manifests.json").read_text()))
ODD = 'a b/it\'s "$HOME" `x` $(y) \\ *;&|é: #.py:big'
DONE = "the training is done"


def objects(roster: str, job: str = "job.py", plan: str = "ring:workers=2", **more: Any) -> dict[str, Any]:
    """The objects of a manifest by their kinds, each checked against its schema."""
    place = {key: more.pop(key) for key in ("image", "namespace") if key in more}
    found = list(yaml.safe_load_all(manifest(training(job, plan, roster=roster, **more), **place)))
    for each in found:
        name = each["kind"]
        jsonschema.validate(each, {"$ref": f"#/$defs/{name}", "$defs": SCHEMA.schema["$defs"]})
    return {each["kind"]: each for each in found}


@pytest.mark.parametrize("roster", ROSTERS)
@pytest.mark.parametrize("more", [{}, {"gpus": 2, "memory": 64, "cpus": 16, "namespace": "team", "image": "x.org/a:1"}])
def test_manifests_keep_to_the_schemas(roster: str, more: dict[str, Any]) -> None:
    found = objects(roster, **more)
    kinds = {"ray": {"RayJob", "ConfigMap", "PersistentVolumeClaim"}, "environment": {"StatefulSet", "Service"}}
    assert set(found) == kinds[roster]
    assert {each["metadata"].get("namespace") for each in found.values()} == {more.get("namespace")}


def test_the_schemas_refuse_what_does_not_belong() -> None:
    job = objects("ray")["RayJob"]
    for broken in ({"spec": {**job["spec"], "backofLimit": 3}}, {"kind": "RayJobs"}, {"metadata": {"name": "x" * 48}}):
        with pytest.raises(jsonschema.ValidationError):
            SCHEMA.validate({**job, **broken})


@settings(max_examples=25)
@given(st.text(min_size=1, max_size=60), st.sampled_from(ROSTERS))
def test_any_job_makes_a_valid_manifest_or_is_refused(job: str, roster: str) -> None:
    """The job's path comes out of the file as it went in."""
    try:
        found = objects(roster, job)
    except UsageError:
        assert not job.isprintable() or job.startswith("-")
        return
    tokens = (
        subprocess.run(
            ["sh", "-c", f'paceline() {{ printf \'%s\\0\' "$@"; }}\n{line_of(script_of(found))}\n"$@"'],
            capture_output=True,
            check=True,
        )
        .stdout.decode()
        .split("\0")
    )
    assert tokens[:2] == ["train", job]


def script_of(found: dict[str, Any]) -> str:
    if "ConfigMap" in found:
        return str(found["ConfigMap"]["data"]["train.sh"])
    return str(found["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]["command"][2])


def line_of(script: str) -> str:
    return next(line.strip() for line in script.splitlines() if line.strip().startswith("set -- paceline train"))


@pytest.mark.parametrize("roster", ROSTERS)
def test_pods_have_no_privilege_and_what_was_asked_for(roster: str) -> None:
    found = objects(roster, gpus=2, cpus=16, memory=64, image="x.org/a:1")
    for template in templates(found):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["terminationGracePeriodSeconds"] >= 60
        (container,) = spec["containers"]
        assert container["image"] == "x.org/a:1"
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        mounted = {each["name"] for each in container["volumeMounts"]}
        claims = found.get("StatefulSet", {}).get("spec", {}).get("volumeClaimTemplates", [])
        assert mounted == {each["name"] for each in spec.get("volumes", [])} | {c["metadata"]["name"] for c in claims}
    working = templates(found)[-1]["spec"]["containers"][0]["resources"]
    assert working == {
        "requests": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "2"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "2"},
    }


def templates(found: dict[str, Any]) -> list[Any]:
    if "StatefulSet" in found:
        return [found["StatefulSet"]["spec"]["template"]]
    cluster = found["RayJob"]["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]


def test_a_ray_job_has_a_head_a_token_and_all_its_nodes() -> None:
    found = objects("ray", "net.py", "downpour:workers=8", nodes=4)
    spec = found["RayJob"]["spec"]
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    (group,) = cluster["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (4, 4, 4)
    assert group["rayStartParams"] == {"num-cpus": "2"}
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    volumes = {each["name"]: each for each in cluster["headGroupSpec"]["template"]["spec"]["volumes"]}
    assert volumes["runs"]["persistentVolumeClaim"]["claimName"] == found["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["script"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    mounts = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    folder = next(each["mountPath"] for each in mounts if each["name"] == "script")
    assert spec["entrypoint"] == f"sh {folder}/train.sh"


def test_pods_of_a_stateful_set_are_the_ranks() -> None:
    found = objects("environment", "net.py", "downpour:workers=4")
    service, spec = found["Service"], found["StatefulSet"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert spec["serviceName"] == service["metadata"]["name"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert (spec["replicas"], spec["podManagementPolicy"]) == (4, "Parallel")
    environ = {each["name"]: each["value"] for each in spec["template"]["spec"]["containers"][0]["env"]}
    for rank in range(4):
        launched = from_environment({**environ, "HOSTNAME": f"{found['StatefulSet']['metadata']['name']}-{rank}"})
        assert launched is not None
        assert (launched.launcher, launched.rank, launched.nodes) == ("kubernetes", rank, 4)
        assert launched.head == ("net-0.net", service["spec"]["ports"][0]["port"])


def test_a_stateful_set_refers_to_its_secret_and_mounts_it_for_reading() -> None:
    spec = objects("environment")["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    mount = next(each for each in container["volumeMounts"] if each["name"] == "keys")
    assert mount["readOnly"]
    assert {"name": "PACELINE_KEYS", "value": mount["mountPath"]} in container["env"]
    (volume,) = spec["volumes"]
    assert volume == {"name": "keys", "secret": {"secretName": "job-keys", "defaultMode": 0o440}}


# What the scripts do.


def here(stage: Stage, roster: str, **more: Any) -> str:
    """The script of a manifest, with folders of the stage instead of the pod's."""
    text = script_of(objects(roster, **more))
    (stage.folder / "runs").mkdir(exist_ok=True)
    for line, folder in (("cd /work\n", f"cd '{stage.folder}'\n"), ("runs=/runs\n", f"runs='{stage.folder}/runs'\n")):
        assert line in text
        text = text.replace(line, folder)
    return text


@pytest.mark.parametrize("job", ["job.py", ODD])
def test_a_ray_job_begins_a_run_or_resumes_one(stage: Stage, job: str) -> None:
    text, ray = here(stage, "ray", job=job), ["--engine", "ray", "--address", "auto"]
    assert stage.run("sh", text)[0] == 0
    begin = ["--plan", "ring:workers=2", "--checkpoint-every", "60s", "--runs", f"{stage.folder}/runs"]
    assert stage.words("paceline") == ["train", job, *ray, *begin]
    path = stage.left("runs", Status.FAILED)
    (stage.calls / "status").write_text("1")
    assert stage.run("sh", text)[0] == 1  # KubeRay tries again
    assert stage.words("paceline") == ["train", job, *ray, "--resume", str(path)]


def test_a_ray_job_that_is_done_is_not_run_again(stage: Stage) -> None:
    path = stage.left("runs", Status.DONE)
    assert stage.run("sh", here(stage, "ray")) == (0, f"{path} is done\n")
    assert stage.words("paceline") == []


@pytest.mark.parametrize("rank", [0, 11])
def test_only_rank_0_resumes(stage: Stage, rank: int) -> None:
    path = stage.left("runs", Status.FAILED)
    (stage.calls / "status").write_text("1")
    status, _ = stage.run("sh", here(stage, "environment", job=ODD), HOSTNAME=f"job-{rank}")
    assert status == 1  # the pod is started again
    begin = ["--plan", "ring:workers=2", "--checkpoint-every", "60s", "--runs", f"{stage.folder}/runs"]
    assert stage.words("paceline") == ["train", ODD, *(begin if rank else ["--resume", str(path)])]


def test_a_pod_that_is_done_waits_and_does_not_train_again(stage: Stage) -> None:
    """A StatefulSet starts again what ends. SIGTERM, as when it is deleted, ends the pod at once."""
    text = here(stage, "environment")
    for calls in (["train"], []):
        process = stage.start("sh", text, HOSTNAME="job-1")
        assert process.stdout is not None
        assert DONE in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
        assert process.returncode == -signal.SIGTERM
        assert stage.words("paceline")[:1] == calls
        (stage.calls / "paceline").unlink(missing_ok=True)


def test_rank_0_whose_run_is_done_waits(stage: Stage) -> None:
    path = stage.left("runs", Status.DONE)
    process = stage.start("sh", here(stage, "environment"), HOSTNAME="job-0")
    assert process.stdout is not None
    assert process.stdout.readline() == f"{path} is done\n"
    assert DONE in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert stage.words("paceline") == []


def test_sigterm_reaches_the_training(stage: Stage) -> None:
    """The pod's first process is a shell, which passes it on and reports how the training ended."""
    (stage.calls / "waits").touch()
    process = stage.start("sh", here(stage, "environment"), HOSTNAME="job-0")
    stage.until((stage.calls / "ready").exists, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 143
    assert not (stage.folder / "runs/done").exists()
