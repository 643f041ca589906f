"""The commands `paceline emit slurm`, `paceline emit kubernetes` and `paceline emit docker`."""

from __future__ import annotations

import typer

from paceline.interfaces.cli import emit_options, options
from paceline.interfaces.cli.layout import Command, Group
from paceline.interfaces.cli.output import write_text

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Write files that train a job on many machines: for Slurm, for Kubernetes, or a Dockerfile.",
)


@app.command(cls=Command)
def slurm(
    job: emit_options.EmittedJob,
    plan: emit_options.EmittedPlan,
    workers: options.Workers = None,
    nodes: emit_options.Nodes = None,
    cpus: emit_options.Cpus = None,
    gpus: emit_options.Gpus = 0,
    memory: emit_options.Memory = None,
    time: emit_options.Time = None,
    partition: emit_options.Partition = None,
    roster: emit_options.Roster = "ray",
    name: emit_options.EmittedName = None,
    job_args: options.JobArgs = None,
    output: emit_options.EmittedFile = None,
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
    job: emit_options.EmittedJob,
    plan: emit_options.EmittedPlan,
    workers: options.Workers = None,
    nodes: emit_options.Nodes = None,
    cpus: emit_options.Cpus = None,
    gpus: emit_options.Gpus = 0,
    memory: emit_options.Memory = None,
    image: emit_options.Image = None,
    namespace: emit_options.Namespace = None,
    roster: emit_options.Roster = "ray",
    name: emit_options.EmittedName = None,
    job_args: options.JobArgs = None,
    output: emit_options.EmittedFile = None,
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
    job: emit_options.EmittedJob,
    python: emit_options.PythonVersion = "3.11",
    roster: emit_options.Roster = "ray",
    cuda: emit_options.Cuda = False,
    job_args: options.JobArgs = None,
    output: emit_options.EmittedFile = None,
    force: options.Force = False,
) -> None:
    """Write a Dockerfile whose image trains JOB, with the packages in the versions that are installed here.

    JOB is a path from the folder in which the image is built, all of which the image contains; or a built-in job.
    """
    from paceline.interfaces.emit.docker import check_job, dockerfile, installed

    text = dockerfile(job, installed(), python=python, roster=roster, cuda=cuda, job_args=job_args)
    check_job(job)
    write_text(text, output, force)
