"""The options of `paceline compress`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.interfaces.cli.options import writable

Within = Annotated[float, typer.Option(min=0.0, help="Points of accuracy that may be lost.")]
Confidence = Annotated[
    float,
    typer.Option(
        min=0.5, max=0.999, help="Confidence that the loss is within the bound; 0.5: as measured on validation data."
    ),
]
LatencyBound = Annotated[
    str | None,
    typer.Option(
        "--latency", metavar="T", help="Bound on a call with one sample: 5us; for a Cortex-M4 instructions: 110k."
    ),
]
SizeBound = Annotated[
    str | None, typer.Option("--size", metavar="S", help="Bound on the bytes of code and constants: 16KB.")
]
For = Annotated[
    str, typer.Option("--for", help="here: times on this machine; cortex-m4: instruction counts of a Cortex-M4.")
]
CFileOutput = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", callback=writable, help="Write the chosen network as a C99 file."),
]
OnnxOutput = Annotated[
    Path | None,
    typer.Option("--onnx", metavar="FILE", callback=writable, help="Also write it as ONNX, checked in ONNX Runtime."),
]
PageOutput = Annotated[
    Path | None,
    typer.Option("--page", metavar="FILE", callback=writable, help="Write all points and the frontier as a page."),
]
RetrainingPlan = Annotated[
    str | None,
    typer.Option("--plan", "-p", help="The plan by which narrowed networks are retrained.", show_default="sequential"),
]
RetrainingEpochs = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        min=1,
        help="Epochs of each retraining.",
        show_default="twice the job's, at least 5; with a schedule the job's",
    ),
]
CompressionSeed = Annotated[int, typer.Option("--seed", help="Seed that selects the training samples for validation.")]
PrecisionOnly = Annotated[
    bool,
    typer.Option("--precision-only", help="Measure any model in PyTorch's float32, bfloat16 and int8; write nothing."),
]
