"""A network as ONNX, with the quantisation in it as QuantizeLinear and DequantizeLinear, checked in ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.compression.integers import BYTE, IntegerNetwork, IntegerStep, Scale
from paceline.compression.network import INPUT, Affine, Geometry, MaxPooling, Network, Step, Sum, Window
from paceline.errors import MachineError, RunFailed
from paceline.kernels.formulas import is_formula, numbers_of

OPSET = 20
ZERO = 128  # what stands for a weight of 0
AGREEMENT = 0.98  # of labels; ONNX Runtime rounds between its own sums and bytes
OPERATIONS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "gelu": "Gelu", "gelu_tanh": "Gelu"}


def onnx_model(network: Network, whole: IntegerNetwork | None = None) -> bytes:
    """Return a network as ONNX: in float32, or with the scales and the weights of its whole numbers."""
    onnx = _module("onnx")
    graph = _Graph(onnx, network, whole)
    graph.write()
    info, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    made = onnx.helper.make_graph(
        graph.nodes, "network", [info("input", kind, ["samples", *network.sample])],
        [info("output", kind, ["samples", *network.result])], graph.constants,
    )  # fmt: skip
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content


@torch.no_grad()
def check(content: bytes, module: nn.Module, samples: Tensor) -> float:
    """Return the share of samples of which ONNX Runtime has the same label, or of the results' variance that it gives.

    Raise if both are too little.
    """
    runtime = _module("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"input": samples.float().numpy()})
    found, wanted = (each.reshape(len(samples), -1).double() for each in (torch.from_numpy(scores), module(samples)))
    same = float((found.argmax(1) == wanted.argmax(1)).double().mean()) if found.shape[1] > 1 else 0.0
    given = 1 - float((found - wanted).square().mean() / wanted.var().clamp_min(1e-30))
    if max(same, given) < AGREEMENT:
        raise RunFailed(f"ONNX Runtime has the same label for only {same:.1%} of {len(samples)} samples")
    return max(same, given)


def _module(name: str) -> Any:
    try:
        return __import__(name)
    except ModuleNotFoundError:
        raise MachineError(f"{name} is not installed: ONNX needs `pip install 'paceline[compress]'`") from None


@dataclass
class _Graph:
    """Nodes and constants under way."""

    onnx: Any
    network: Network
    whole: IntegerNetwork | None
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    #: The tensor of each value, as an image.
    tensors: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        shape = [-1, *self.network.inputs]
        self.tensors[INPUT] = self._bytes(self._node("Reshape", "input", self._constant("shape", shape)), INPUT)
        steps = self.whole.steps if self.whole is not None else [None] * len(self.network.steps)
        for step, whole in zip(self.network.steps, steps, strict=True):
            self.tensors[step.name] = self._step(step, whole)
        shape = [-1, *self.network.result]
        last = self.tensors[self.network.last.name]
        self.nodes.append(self.onnx.helper.make_node("Reshape", [last, self._constant("result", shape)], ["output"]))

    def _step(self, step: Step, whole: IntegerStep | None) -> str:
        given = [self.tensors[name] for name in step.sources]
        if isinstance(step, MaxPooling):
            return self._node("MaxPool", *given, **_window(step.geometry), kernel_shape=step.geometry.kernel)
        found = given[0]
        if isinstance(step, Affine | Window):
            found = self._sums(step, whole, given[0])
        elif isinstance(step, Sum):
            found = self._node("Add", *given)
        if step.function:
            found = self._bytes(found, step.name, argument=True)
            found = self._activated(step.function, found)
        return found if whole is not None and whole.wide else self._bytes(found, step.name)

    def _activated(self, function: str, given: str) -> str:
        if function == "silu":
            return self._node("Mul", given, self._node("Sigmoid", given))
        if is_formula(function):
            return self._formula(function, given)
        how = {"approximate": "tanh"} if function == "gelu_tanh" else {}
        return self._node(OPERATIONS[function], given, **how)

    def _formula(self, function: str, given: str) -> str:
        word, numbers = function.partition(":")[0], numbers_of(function)
        if word == "hardtanh":
            return self._node("Clip", given, *(self._constant("limit", np.float32(number)) for number in numbers))
        if word in ("selu", "celu"):
            return self._node(word.capitalize(), given, **({"alpha": numbers[0]} if numbers else {}))
        if word == "hardsigmoid":
            return self._node("HardSigmoid", given, alpha=1 / 6, beta=0.5)
        how = {"alpha": numbers[0]} if numbers else {}
        return self._node({"leaky_relu": "LeakyRelu", "elu": "Elu", "hardswish": "HardSwish"}[word], given, **how)

    def _sums(self, step: Affine | Window, whole: IntegerStep | None, source: str) -> str:
        channels = step.shape[0]
        weight, bias = self._weights(step, whole)
        if self._is_dense(step):
            flat = self._node("Flatten", source)
            dense = self._node("Gemm", flat, weight, bias, transB=1)
            return self._node("Reshape", dense, self._constant("image", [-1, *step.shape]))
        group = channels if isinstance(step, Window) else 1
        return self._node("Conv", source, weight, bias, group=group, **_window(step.geometry))

    def _is_dense(self, step: Affine | Window) -> bool:
        """Whether each sum is over the whole source: a dense layer, or an unpadded kernel as large as the image."""
        whole = isinstance(step, Affine) and step.weight[0].numel() == prod(self.network.shape(step.source))
        return whole and not any(step.geometry.padding)

    def _weights(self, step: Affine | Window, whole: IntegerStep | None) -> tuple[str, str]:
        dense = self._is_dense(step)
        channels = step.shape[0]

        def shaped(weight: Tensor) -> Tensor:
            each = weight.expand(channels, *weight.shape[1:])[:, None] if isinstance(step, Window) else weight
            return each.reshape(channels, -1) if dense else each

        if whole is None or self.whole is None or whole.weight is None:
            return self._constant("weight", shaped(step.weight)), self._constant("bias", step.bias)
        scales = torch.tensor(whole.scales, dtype=torch.float32)
        # From 0 on: x86 processors without VNNI add pairs of products of signed weights in 16 bits, which overflow.
        numbers = self._constant("weight", (shaped(whole.weight).to(torch.int16) + ZERO).to(torch.uint8).contiguous())
        zeros = self._constant("zeros", torch.full((channels,), ZERO, dtype=torch.uint8))
        weight = self._node("DequantizeLinear", numbers, self._constant("scales", scales), zeros, axis=0)
        return weight, self._constant("bias", step.bias)

    def _bytes(self, tensor: str, name: str, argument: bool = False) -> str:
        """What a value is after it was a byte; the value itself in float32."""
        if self.whole is None:
            return tensor
        found = self.whole.arguments.get(name) if argument else self.whole.scales[name]
        if found is None:
            return tensor
        scale, zero = self._scale(found)
        return self._node("DequantizeLinear", self._node("QuantizeLinear", tensor, scale, zero), scale, zero)

    def _scale(self, found: Scale) -> tuple[str, str]:
        zero = np.array(min(found.zero, BYTE), dtype=np.uint8)
        return self._constant("scale", np.array(found.scale, dtype=np.float32)), self._constant("zero", zero)

    def _node(self, operation: str, *given: str, **attributes: Any) -> str:
        name = f"{operation.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operation, list(given), [name], **attributes))
        return name

    def _constant(self, word: str, value: Tensor | np.ndarray | np.float32 | list[int]) -> str:
        name = f"{word}_{len(self.constants)}"
        array = np.array(value, dtype=np.int64) if isinstance(value, list) else np.asarray(value)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name


def _window(geometry: Geometry) -> dict[str, Any]:
    return {"strides": geometry.stride, "pads": geometry.padding * 2, "dilations": geometry.dilation}
