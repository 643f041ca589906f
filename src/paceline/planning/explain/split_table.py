"""Split layers as text: who holds what of each layer, and what travels between them."""

from __future__ import annotations

from paceline.algorithms.splits import WHOLE
from paceline.algorithms.splits.derivation import JOINT, PARAMETER, Program, Step
from paceline.algorithms.splits.experts import DISPATCH
from paceline.algorithms.splits.nodes import SplitNode

MOST = 8  # workers with a column


def draw_split(program: Program, replicas: int) -> list[str]:
    """Draw a program: a row for each layer with a column for each worker, and a row for each movement."""
    shown = min(program.workers, MOST)
    table = [["layer", "way", *(f"worker {place}" for place in range(shown))]]
    lines: list[tuple[list[str], str]] = []
    for step in program.forward:
        if step.value:
            lines.append(([], _movement(program, step)))
        lines += [
            (_row(program, program.nodes[name], shown), "") for name in step.nodes if not name.endswith("#blocks")
        ]
    if program.joins:
        lines.append(([], _joint(program)))
    table += [cells for cells, _ in lines if cells]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]

    def padded(cells: list[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    drawing = [padded(table[0]), "  ".join("-" * width for width in widths)]
    drawing += [padded(cells) if cells else text for cells, text in lines if cells or text]
    sent = [sum(program.numbers(place).values()) for place in range(program.workers)]
    each = f"{min(sent):,}" if min(sent) == max(sent) else f"{min(sent):,} to {max(sent):,}"
    drawing += ["", f"Each worker sends {each} numbers for a batch, forward and back."]
    if program.workers > MOST:
        drawing.append(f"{program.workers - MOST} more workers hold parts like these.")
    if replicas > 1:
        drawing.append(f"{replicas} replicas are split in this way, and add the gradients of like parts up.")
    return drawing


def _row(program: Program, node: SplitNode, shown: int) -> list[str]:
    way = program.ways[node.name] or ("follows" if program.layouts[node.name].gives != WHOLE else "whole")
    return [
        node.name if node.kind == DISPATCH else node.layer or node.name,
        way,
        *(_held(program, node, place) for place in range(shown)),
    ]


def _held(program: Program, node: SplitNode, place: int) -> str:
    """Return what a worker holds of a layer's largest parameter, or makes of an operation's result."""
    if node.held:
        parameter = max(node.held, key=lambda each: len(each.shape))
        box = program.stored[parameter.name].box(parameter.shape, place)
        return f"{parameter.role} {_sizes(box)}"
    if node.shape is None:
        return ""
    return f"[{_sizes(program.layouts[node.name].gives.box(node.shape, place))}]"


def _sizes(box: tuple[tuple[int, int], ...]) -> str:
    return "x".join(str(stop - first) for first, stop in box)


def _movement(program: Program, step: Step) -> str:
    """Return a line for a movement; an empty one where nothing travels either way."""
    forward = step.movement
    back = forward.back if step.value in program.needs and step.value not in program.joins else None
    if not forward.travels and not (back is not None and back.travels):
        return ""
    shape, workers = program.shapes[step.value], program.workers
    words = [_way(forward.kind, forward.numbers(shape, 0, workers))]
    if back is not None:
        words.append("back: " + _way(back.kind, back.numbers(shape, 0, workers)))
    name = step.value.removeprefix(PARAMETER)
    return f"    ~~ {name}: {step.source} -> {step.target};  {';  '.join(words)}"


def _joint(program: Program) -> str:
    """Return the line for the gradients that are summed together, at the end of an update's backward."""
    movement, shape = program.steps[-1].movement, program.shapes[JOINT]
    names = [value.removeprefix(PARAMETER) for value in reversed(program.joins)]
    many = f"{len(names)} parameters, {names[0]} to {names[-1]}"
    return f"    ~~ gradients of {many}: {_way(movement.kind, movement.numbers(shape, 0, program.workers))}"


def _way(kind: str, numbers: int) -> str:
    return f"{kind} {numbers:,}" if numbers else kind
