"""A pipeline on a mesh as text: where each worker lies, the timetable of one pipeline, and how its stages are split."""

from __future__ import annotations

from paceline.algorithms.mesh import Mesh
from paceline.algorithms.splits.example import example_program
from paceline.planning.explain.split_table import draw_split
from paceline.plans.methods.pipeline import LAYERS
from paceline.plans.methods.split_layers import DATA, INSIDE
from paceline.plans.methods.views import Stages


def draw_mesh(stages: Stages, timetable: list[str]) -> list[str]:
    """Draw the mesh, then its axes one by one: `layers` as a timetable, `inside` as a table of layers."""
    mesh = stages.mesh
    lines = [f"A mesh of {mesh}:", "", *_places(mesh), ""]
    if stages.gate is not None:
        lines += [
            "Replicas do not wait for each other. Each computes a batch that it has leased; each of its workers pushes",
            "to the shard of its place, and pulls from it:",
            "",
            *(f"  shard {place}   workers {' '.join(map(str, workers))}" for place, workers in _shards(mesh)),
            "",
        ]
    elif mesh.size(DATA) > 1:
        lines += [
            f"Replicas sum the gradients of like parts before an update, by {type(stages.collective).__name__}.",
            "",
        ]
    if mesh.size(LAYERS) > 1:
        lines += ["Along layers, of one replica; its worker n stands for the workers of stage n:", "", *timetable, ""]
    if mesh.size(INSIDE) > 1:
        lines += ["Along inside, as of a stage with all of a small net:", ""]
        lines += draw_split(example_program(stages.recipe, mesh.size(INSIDE)), 1)
    return lines


def _shards(mesh: Mesh) -> list[tuple[int, range]]:
    """Return the workers of each shard: one of every replica."""
    size = mesh.workers // mesh.size(DATA)
    return [(place, range(place, mesh.workers, size)) for place in range(size)]


def _places(mesh: Mesh) -> list[str]:
    """Return a row for each replica, a column for each stage, and the workers that share it."""
    depth, inside = mesh.size(LAYERS), mesh.size(INSIDE)
    cells = [["", *(f"layers {stage}" for stage in range(depth))]]
    for replica in range(mesh.size(DATA)):
        first = [(replica * depth + stage) * inside for stage in range(depth)]
        groups = (mesh.group(worker, INSIDE) for worker in first)
        cells.append([f"data {replica}", *("workers " + " ".join(map(str, group)) for group in groups)])
    widths = [max(len(row[column]) for row in cells) for column in range(depth + 1)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
