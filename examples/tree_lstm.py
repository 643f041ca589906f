"""A tree LSTM, whose structure is that of its input, under `ampnet`: `python tree_lstm.py`.

Compare it with training in step: `paceline compare tree_lstm.py --plans sequential,ring,ampnet`.
"""

import random
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import paceline

OPERATIONS = (int.__and__, int.__or__, int.__xor__)
Tree = int | tuple  # a leaf, 0 or 1; or (operation, left, right)


def grown(draw: random.Random, leaves: int) -> Tree:
    """Return a random expression with so many leaves."""
    if leaves == 1:
        return draw.randrange(2)
    left = draw.randrange(1, leaves)
    return draw.randrange(len(OPERATIONS)), grown(draw, left), grown(draw, leaves - left)


def truth(tree: Tree) -> int:
    return tree if isinstance(tree, int) else OPERATIONS[tree[0]](truth(tree[1]), truth(tree[2]))


class Leaf(nn.Embedding):
    def forward(self, word: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = super().forward(word).tanh().chunk(2, -1)
        return hidden, cell


class Branch(nn.Module):
    """The cell of a binary tree LSTM (Tai, Socher and Manning, 2015), with a word of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.words, self.gates = nn.Embedding(3, size), nn.Linear(3 * size, 5 * size)

    def forward(self, word: Tensor, h1: Tensor, c1: Tensor, h2: Tensor, c2: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.gates(torch.cat([self.words(word), h1, h2], -1))
        enter, forget1, forget2, leave, new = gates.chunk(5, -1)
        cell = enter.sigmoid() * new.tanh() + forget1.sigmoid() * c1 + forget2.sigmoid() * c2
        return leave.sigmoid() * cell.tanh(), cell


class TreeLSTM(nn.Module):
    """An ordinary module: its submodules are the operators, and `forward` calls them as its input says."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.leaf, self.branch, self.head = Leaf(2, 2 * size), Branch(size), nn.Linear(size, 2)

    def forward(self, tree: Tree) -> Tensor:
        scores: Tensor = self.head(self.state(tree)[0])
        return scores

    def state(self, tree: Tree) -> tuple[Tensor, Tensor]:
        if isinstance(tree, int):
            return tuple(self.leaf(torch.tensor([tree])))
        operation, left, right = tree
        return tuple(self.branch(torch.tensor([operation]), *self.state(left), *self.state(right)))


def evaluate(model: nn.Module, batch: list[Tree]) -> tuple[Tensor, Tensor]:
    return torch.cat([model(tree) for tree in batch]), torch.tensor([truth(tree) for tree in batch])


def step(model: nn.Module, batch: list[Tree]) -> Tensor:
    """The mean loss of a batch, tree by tree."""
    return nn.functional.cross_entropy(*evaluate(model, batch))


def trees(count: int, seed: int, most: int = 6) -> list[Tree]:
    draw = random.Random(seed)
    return [grown(draw, draw.randrange(2, most + 1)) for _ in range(count)]


job = paceline.Job(
    model=TreeLSTM,
    data=DataLoader(trees(200, 0), batch_size=8, shuffle=True, collate_fn=list),
    test=DataLoader(trees(100, 1), batch_size=100, collate_fn=list),
    step=step,
    evaluate=evaluate,
    metrics={"accuracy": lambda scores, target: float((scores.argmax(1) == target).float().mean())},
    optimizer=partial(torch.optim.Adam, lr=0.005),
    epochs=2,
)

if __name__ == "__main__":
    run = paceline.train(job, paceline.Ampnet(workers=2, micro_batches=8, every=8, active=16), folder=None)
    for evaluation in run.history:
        print(f"after {evaluation['updates']} batches: {evaluation['accuracy']:.1%} right")
