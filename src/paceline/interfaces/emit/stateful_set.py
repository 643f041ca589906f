"""A StatefulSet with its headless Service: pods with stable names, which are the ranks.

The ordinal of a pod is its rank (`algorithms.cluster.launchers`). A StatefulSet starts again whatever ends, so a pod
whose training is done notes that in its volume, and waits to be deleted.
"""

from __future__ import annotations

from paceline.interfaces.emit.pods import RUNS, WORK, Place, claim, container, labels, metadata, pod
from paceline.interfaces.emit.shell import choose_run
from paceline.interfaces.emit.training import Training
from paceline.interfaces.emit.yaml_text import Value, documents

PORT = 29471
#: Where the run's keys are; PACELINE_KEYS names the folder.
KEYS = "/etc/paceline/keys"
#: Octal 0440: the keys may be read by the process and by no one else.
KEYS_MODE = 0o440

#: A signal to the pod goes to its first process alone, which is the shell. `wait` also returns when a signal has been
#: handled.
WATCH = """\
    child= stopped=
    stop() { stopped=yes; if [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null || true; fi; }
    trap stop TERM
    "$@" &
    child=$!
    if [ -n "$stopped" ]; then stop; fi
    status=0
    wait "$child" || status=$?
    while kill -0 "$child" 2>/dev/null; do
        status=0
        wait "$child" || status=$?
    done
    trap - TERM
    if [ "$status" -ne 0 ]; then exit "$status"; fi
    : >"$runs/done"
fi
echo "the training is done; its run is in $runs on the volume of rank 0"
exec sleep infinity
"""


def stateful_set(training: Training, place: Place) -> str:
    """Return the manifest."""
    name = training.name
    comment = [
        f"Trains {training.summary}.",
        "The keys that `paceline keys` made for this run are needed first:",
        f"    kubectl create secret generic {name}-keys --from-file=KEYS_FOLDER"
        + (f" --namespace={place.namespace}" if place.namespace else ""),
        "    kubectl apply -f FILE",
        f"    kubectl logs -f {name}-0",
        "A StatefulSet does not end on its own: delete it when the training is done. The volumes with the runs stay.",
    ]
    service: Value = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name, training, place),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks find each other before all of them are ready
            "selector": labels(training),
            "ports": [{"name": "head", "port": PORT}],
        },
    }
    return documents([service, _set(training, place)], comment)


def _set(training: Training, place: Place) -> Value:
    name = training.name
    environment: Value = [
        {"name": "PACELINE_NODES", "value": str(training.nodes)},
        {"name": "PACELINE_HEAD", "value": f"{name}-0.{name}:{PORT}"},
        {"name": "PACELINE_KEYS", "value": KEYS},
    ]
    mounts: list[Value] = [
        {"name": "runs", "mountPath": RUNS},
        {"name": "keys", "mountPath": KEYS, "readOnly": True},
    ]
    volumes: list[Value] = [{"name": "keys", "secret": {"secretName": f"{name}-keys", "defaultMode": KEYS_MODE}}]
    command: Value = ["/bin/sh", "-c", _script(training)]
    train = container(
        "train",
        training,
        place,
        mounts,
        command=command,
        env=environment,
        ports=[{"name": "head", "containerPort": PORT}],
    )
    spec: Value = {
        "serviceName": name,
        "replicas": training.nodes,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels(training)},
        # As process 1 of its own namespace, `sleep` would ignore SIGTERM.
        "template": pod(training, [train], volumes, restartPolicy="Always", shareProcessNamespace=True),
        "volumeClaimTemplates": [{"metadata": {"name": "runs"}, "spec": claim()}],
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata(name, training, place), "spec": spec}


def _script(training: Training) -> str:
    """Return what each pod runs. Rank 0 alone keeps the run, so it alone looks for one to resume."""
    chosen = choose_run(training, "set -- true", only_if='[ "${HOSTNAME##*-}" = 0 ]')
    lines = [
        "set -eu",
        f"cd {WORK}",
        f"runs={RUNS}",
        'if [ ! -e "$runs/done" ]; then',
        *(f"    {line}" for line in chosen),
    ]
    return "\n".join(lines) + "\n" + WATCH
