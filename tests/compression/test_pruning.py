"""Channels leave the model whole, with all that depends on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.compression.building import Built
from paceline.compression.emission.c_file import program_file
from paceline.compression.pruning import narrowed, prunable
from paceline.compression.reading import graph_of, network_of


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.outer = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(6, 8, 1)
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = x + self.outer(torch.relu(self.inner(x)))
        return self.head(torch.flatten(x, 1))


def test_channels_without_weight_leave_without_a_trace() -> None:
    """The result does not change when the channels that go are those that nothing reads."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 9, 7),
        nn.Tanh(),
        nn.Linear(7, 3),
    ).eval()
    dead = [1, 4]
    with torch.no_grad():
        model[5].weight.view(7, 6, 9)[:, dead] = 0
        model[7].weight[:, 2] = 0
    x = torch.randn(20, 1, 8, 8)
    made = narrowed(model, graph_of(model, x), {"0": 4, "5": 6}, x).eval()
    assert (made[0].out_channels, made[1].num_features, made[5].in_features, made[5].out_features) == (4, 4, 36, 6)
    torch.testing.assert_close(made(x), model(x))
    assert model[0].out_channels == 6, "the model itself stays as it was"


def test_what_reaches_an_addition_or_the_result_keeps_its_width() -> None:
    found = prunable(graph_of(Skip(), torch.empty(1, 1, 6, 6)))
    assert [(each.module, each.channels) for each in found] == [("inner", 6)]


def test_a_module_that_is_called_twice_keeps_its_width() -> None:
    shared = nn.Linear(8, 8)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(8, 2))
    assert [each.module for each in prunable(graph_of(model, torch.empty(1, 4)))] == []


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, 10, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(5, 12), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), Mean())


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean(1))


def test_heads_that_nothing_reads_leave_without_a_trace() -> None:
    model, x = encoder().eval(), torch.randn(20, 4, 5)
    graph = graph_of(model, x)
    assert [(each.module, each.channels) for each in prunable(graph)] == [
        ("1.layers.0.self_attn", 3),
        ("1.layers.0.linear1", 10),
    ]
    part = model[1].layers[0]
    with torch.no_grad():
        part.self_attn.out_proj.weight[:, 4:8] = 0
        part.linear2.weight[:, [2, 5]] = 0
    expected = model(x).detach()
    made = narrowed(model, graph, {"1.layers.0.self_attn": 2, "1.layers.0.linear1": 8}, x).eval()
    narrow = made[1].layers[0]
    assert (narrow.self_attn.num_heads, narrow.linear1.out_features, narrow.linear2.in_features) == (2, 8, 8)
    torch.testing.assert_close(made(x), expected, rtol=1e-4, atol=1e-5)
    again = narrowed(made, graph_of(made, x), {"1.layers.0.self_attn": 1}, x)
    assert again(x).shape == (20, 2)
    network = network_of(made, x)
    file = program_file(network, made, x)
    with Built(file, network.numbers_in, network.numbers_out) as built:
        torch.testing.assert_close(built.run(x), expected, rtol=1e-4, atol=1e-5)


def test_a_sequence_that_is_flattened_keeps_its_width() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    assert prunable(graph_of(model, torch.empty(1, 4, 5))) == []
