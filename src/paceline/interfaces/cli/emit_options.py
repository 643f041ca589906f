"""The options of `paceline emit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.interfaces.cli.options import writable

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
