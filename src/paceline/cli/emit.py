"""The commands `paceline emit slurm`, `paceline emit kubernetes` and `paceline emit docker`."""

from __future__ import annotations

import typer

from paceline.cli import options
from paceline.cli.output import write_text

app = typer.Typer(
    no_args_is_help=True,
    help="Write files that train a job on many machines: for Slurm, for Kubernetes, or a Dockerfile.",
)


@app.command()
def slurm(
    job: options.EmittedJob,
    plan: options.EmittedPlan,
    workers: options.Workers = None,
    nodes: options.Nodes = None,
    cpus: options.Cpus = None,
    gpus: options.Gpus = 0,
    memory: options.Memory = None,
    time: options.Time = None,
    partition: options.Partition = None,
    roster: options.Roster = "ray",
    name: options.EmittedName = None,
    output: options.EmittedFile = None,
    force: options.Force = False,
) -> None:
    """Write a batch script that trains JOB, for `sbatch`.

    The run goes on after a preemption, and SIGTERM before the time limit lets it write a checkpoint. JOB is a path as
    the nodes see it from the folder in which sbatch is called; it is not read now.
    """
    from paceline.emit.slurm import batch_script
    from paceline.emit.training import training

    chosen = training(job, plan, workers, nodes=nodes, cpus=cpus, gpus=gpus, memory=memory, roster=roster, name=name)
    write_text(batch_script(chosen, time, partition), output, force)


@app.command()
def kubernetes(
    job: options.EmittedJob,
    plan: options.EmittedPlan,
    workers: options.Workers = None,
    nodes: options.Nodes = None,
    cpus: options.Cpus = None,
    gpus: options.Gpus = 0,
    memory: options.Memory = None,
    image: options.Image = None,
    namespace: options.Namespace = None,
    roster: options.Roster = "ray",
    name: options.EmittedName = None,
    output: options.EmittedFile = None,
    force: options.Force = False,
) -> None:
    """Write a manifest that trains JOB, for `kubectl apply`: a RayJob of KubeRay, or a StatefulSet.

    A volume keeps the runs, and an attempt that fails is followed by one that resumes the run. JOB is a path inside
    the image, from its folder /work; it is not read now. `paceline emit docker JOB` describes such an image.
    """
    from paceline.emit.kubernetes import RAY, manifest
    from paceline.emit.training import training
    from paceline.emit.versions import installed

    chosen = training(job, plan, workers, nodes=nodes, cpus=cpus, gpus=gpus, memory=memory, roster=roster, name=name)
    write_text(manifest(chosen, image, namespace, installed().get("ray", RAY)), output, force)


@app.command()
def docker(
    job: options.EmittedJob,
    python: options.PythonVersion = "3.11",
    roster: options.Roster = "ray",
    cuda: options.Cuda = False,
    output: options.EmittedFile = None,
    force: options.Force = False,
) -> None:
    """Write a Dockerfile whose image trains JOB, with the packages in the versions that are installed here.

    JOB is a path from the folder in which the image is built, all of which the image contains; or a built-in job.
    """
    from paceline.emit.docker import dockerfile
    from paceline.emit.versions import installed

    write_text(dockerfile(job, installed(), python=python, roster=roster, cuda=cuda), output, force)
