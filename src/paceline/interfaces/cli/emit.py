"""The commands `paceline emit slurm`, `paceline emit kubernetes` and `paceline emit docker`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.interfaces.cli import options
from paceline.interfaces.cli.options import writable
from paceline.interfaces.cli.terminal import Command, Group, write_text

# The options of `paceline emit`.

EmittedJob = Annotated[
    str,
    typer.Argument(metavar="JOB", help="A Python file with a module-level `job` (or file.py:name), or a built-in job."),
]
EmittedPlan = Annotated[str, typer.Option("--plan", "-p", help="A plan's name and options, as in downpour:workers=4.")]
Nodes = Annotated[int | None, typer.Option(help="Number of nodes.", show_default="one for each worker")]
Cpus = Annotated[int | None, typer.Option(help="CPUs of each node.", show_default="one for each worker's thread")]
Gpus = Annotated[int, typer.Option(help="GPUs of each node.")]
Memory = Annotated[
    int | None, typer.Option(help="GiB of memory of each node.", show_default="Slurm's own; 4 for Kubernetes")
]
Roster = Annotated[
    str,
    typer.Option(
        help="ray: Ray places, starts and replaces processes; environment: the launcher starts one on each node."
    ),
]
EmittedName = Annotated[str | None, typer.Option("--name", help="Name of the training.", show_default="from JOB")]
Time = Annotated[str | None, typer.Option(help="Time limit, as in 1:30:00.", show_default="the partition's own")]
Partition = Annotated[str | None, typer.Option(help="Slurm's partition.", show_default="Slurm's own")]
Image = Annotated[str | None, typer.Option(help="The image of all pods.", show_default="the name, with tag latest")]
Namespace = Annotated[str | None, typer.Option(help="The namespace of all objects.", show_default="kubectl's own")]
PythonVersion = Annotated[str, typer.Option("--python", help="Version of Python.")]
Cuda = Annotated[bool, typer.Option("--cuda", help="Install PyTorch for NVIDIA GPUs instead of CPUs.")]
EmittedFile = Annotated[
    Path | None,
    typer.Option("--output", "-o", callback=writable, help="File to write.", show_default="standard output"),
]


app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Write files that train a job on many machines: for Slurm, for Kubernetes, or a Dockerfile.",
)


@app.command(cls=Command)
def slurm(
    job: EmittedJob,
    plan: EmittedPlan,
    workers: options.Workers = None,
    nodes: Nodes = None,
    cpus: Cpus = None,
    gpus: Gpus = 0,
    memory: Memory = None,
    time: Time = None,
    partition: Partition = None,
    roster: Roster = "ray",
    name: EmittedName = None,
    job_args: options.JobArgs = None,
    output: EmittedFile = None,
    force: options.Force = False,
) -> None:
    """Write a batch script that trains JOB, for `sbatch`.

    The run goes on after a preemption, and SIGTERM before the time limit lets it write a checkpoint. JOB is a path as
    the nodes see it from the folder in which sbatch is called; it is not read now.
    """
    from paceline.interfaces.emit.slurm import batch_script
    from paceline.interfaces.emit.training import training

    chosen = training(
        job,
        plan,
        workers,
        nodes=nodes,
        cpus=cpus,
        gpus=gpus,
        memory=memory,
        roster=roster,
        name=name,
        job_args=job_args,
    )
    write_text(batch_script(chosen, time, partition), output, force)


@app.command(cls=Command)
def kubernetes(
    job: EmittedJob,
    plan: EmittedPlan,
    workers: options.Workers = None,
    nodes: Nodes = None,
    cpus: Cpus = None,
    gpus: Gpus = 0,
    memory: Memory = None,
    image: Image = None,
    namespace: Namespace = None,
    roster: Roster = "ray",
    name: EmittedName = None,
    job_args: options.JobArgs = None,
    output: EmittedFile = None,
    force: options.Force = False,
) -> None:
    """Write a manifest that trains JOB, for `kubectl apply`: a RayJob of KubeRay, or a StatefulSet.

    A volume keeps the runs, and an attempt that fails is followed by one that resumes the run. JOB is a path inside
    the image, from its folder /work; it is not read now. `paceline emit docker JOB` describes such an image.
    """
    from paceline.interfaces.emit.docker import installed
    from paceline.interfaces.emit.kubernetes import RAY, manifest
    from paceline.interfaces.emit.training import training

    chosen = training(
        job,
        plan,
        workers,
        nodes=nodes,
        cpus=cpus,
        gpus=gpus,
        memory=memory,
        roster=roster,
        name=name,
        job_args=job_args,
    )
    write_text(manifest(chosen, image, namespace, installed().get("ray", RAY)), output, force)


@app.command(cls=Command)
def docker(
    job: EmittedJob,
    python: PythonVersion = "3.11",
    roster: Roster = "ray",
    cuda: Cuda = False,
    job_args: options.JobArgs = None,
    output: EmittedFile = None,
    force: options.Force = False,
) -> None:
    """Write a Dockerfile whose image trains JOB, with the packages in the versions that are installed here.

    JOB is a path from the folder in which the image is built, all of which the image contains; or a built-in job.
    """
    from paceline.interfaces.emit.docker import check_job, dockerfile, installed

    text = dockerfile(job, installed(), python=python, roster=roster, cuda=cuda, job_args=job_args)
    check_job(job)
    write_text(text, output, force)
