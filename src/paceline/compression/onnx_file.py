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
from paceline.kernels.functions import is_formula, numbers_of

OPSET = 20
ZERO = 128  # what stands for a weight of 0
AGREEMENT = 0.98  # of labels; ONNX Runtime rounds between its own sums and bytes
OPERATIONS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "gelu": "Gelu", "gelu_tanh": "Gelu"}


def onnx_model(network: Network, integer_network: IntegerNetwork | None = None) -> bytes:
    """Return a network as ONNX: in float32, or with the scales and the weights of its whole numbers."""
    onnx = _module("onnx")
    graph = _OnnxGraph(onnx, network, integer_network)
    graph.write()
    info, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    onnx_graph = onnx.helper.make_graph(
        graph.nodes,
        "network",
        [info("input", kind, ["samples", *network.sample])],
        [info("output", kind, ["samples", *network.result])],
        graph.constants,
    )
    model = onnx.helper.make_model(onnx_graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)
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
    outputs, expected = (
        each.reshape(len(samples), -1).double() for each in (torch.from_numpy(scores), module(samples))
    )
    same = float((outputs.argmax(1) == expected.argmax(1)).double().mean()) if outputs.shape[1] > 1 else 0.0
    r_squared = 1 - float((outputs - expected).square().mean() / expected.var().clamp_min(1e-30))
    if max(same, r_squared) < AGREEMENT:
        raise RunFailed(f"ONNX Runtime has the same label for only {same:.1%} of {len(samples)} samples")
    return max(same, r_squared)


def _module(name: str) -> Any:
    try:
        return __import__(name)
    except ModuleNotFoundError:
        raise MachineError(f"{name} is not installed: ONNX needs `pip install 'paceline[compress]'`") from None


@dataclass
class _OnnxGraph:
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
        for step, integer_step in zip(self.network.steps, steps, strict=True):
            self.tensors[step.name] = self._step(step, integer_step)
        shape = [-1, *self.network.result]
        last = self.tensors[self.network.last.name]
        self.nodes.append(self.onnx.helper.make_node("Reshape", [last, self._constant("result", shape)], ["output"]))

    def _step(self, step: Step, integer_step: IntegerStep | None) -> str:
        inputs = [self.tensors[name] for name in step.sources]
        if isinstance(step, MaxPooling):
            return self._node("MaxPool", *inputs, **_window(step.geometry), kernel_shape=step.geometry.kernel)
        tensor = inputs[0]
        if isinstance(step, Affine | Window):
            tensor = self._sums(step, integer_step, inputs[0])
        elif isinstance(step, Sum):
            tensor = self._node("Add", *inputs)
        if step.function:
            tensor = self._bytes(tensor, step.name, argument=True)
            tensor = self._activated(step.function, tensor)
        return tensor if integer_step is not None and integer_step.wide else self._bytes(tensor, step.name)

    def _activated(self, function: str, tensor: str) -> str:
        if function == "silu":
            return self._node("Mul", tensor, self._node("Sigmoid", tensor))
        if is_formula(function):
            return self._formula(function, tensor)
        how = {"approximate": "tanh"} if function == "gelu_tanh" else {}
        return self._node(OPERATIONS[function], tensor, **how)

    def _formula(self, function: str, tensor: str) -> str:
        word, numbers = function.partition(":")[0], numbers_of(function)
        if word == "hardtanh":
            return self._node("Clip", tensor, *(self._constant("limit", np.float32(number)) for number in numbers))
        if word in ("selu", "celu"):
            return self._node(word.capitalize(), tensor, **({"alpha": numbers[0]} if numbers else {}))
        if word == "hardsigmoid":
            return self._node("HardSigmoid", tensor, alpha=1 / 6, beta=0.5)
        how = {"alpha": numbers[0]} if numbers else {}
        return self._node({"leaky_relu": "LeakyRelu", "elu": "Elu", "hardswish": "HardSwish"}[word], tensor, **how)

    def _sums(self, step: Affine | Window, integer_step: IntegerStep | None, source: str) -> str:
        channels = step.shape[0]
        weight, bias = self._weights(step, integer_step)
        if self._is_dense(step):
            flat = self._node("Flatten", source)
            dense = self._node("Gemm", flat, weight, bias, transB=1)
            return self._node("Reshape", dense, self._constant("image", [-1, *step.shape]))
        group = channels if isinstance(step, Window) else 1
        return self._node("Conv", source, weight, bias, group=group, **_window(step.geometry))

    def _is_dense(self, step: Affine | Window) -> bool:
        """Whether each sum is over the whole source: a dense layer, or an unpadded kernel as large as the image."""
        covers_source = isinstance(step, Affine) and step.weight[0].numel() == prod(self.network.shape(step.source))
        return covers_source and not any(step.geometry.padding)

    def _weights(self, step: Affine | Window, integer_step: IntegerStep | None) -> tuple[str, str]:
        dense = self._is_dense(step)
        channels = step.shape[0]

        def shaped(weight: Tensor) -> Tensor:
            each = weight.expand(channels, *weight.shape[1:])[:, None] if isinstance(step, Window) else weight
            return each.reshape(channels, -1) if dense else each

        if integer_step is None or self.whole is None or integer_step.weight is None:
            return self._constant("weight", shaped(step.weight)), self._constant("bias", step.bias)
        scales = torch.tensor(integer_step.scales, dtype=torch.float32)
        # From 0 on: x86 processors without VNNI add pairs of products of signed weights in 16 bits, which overflow.
        numbers = self._constant(
            "weight", (shaped(integer_step.weight).to(torch.int16) + ZERO).to(torch.uint8).contiguous()
        )
        zeros = self._constant("zeros", torch.full((channels,), ZERO, dtype=torch.uint8))
        weight = self._node("DequantizeLinear", numbers, self._constant("scales", scales), zeros, axis=0)
        return weight, self._constant("bias", step.bias)

    def _bytes(self, tensor: str, name: str, argument: bool = False) -> str:
        """What a value is after it was a byte; the value itself in float32."""
        if self.whole is None:
            return tensor
        value_scale = self.whole.arguments.get(name) if argument else self.whole.scales[name]
        if value_scale is None:
            return tensor
        scale, zero = self._scale(value_scale)
        return self._node("DequantizeLinear", self._node("QuantizeLinear", tensor, scale, zero), scale, zero)

    def _scale(self, scale: Scale) -> tuple[str, str]:
        zero = np.array(min(scale.zero, BYTE), dtype=np.uint8)
        return self._constant("scale", np.array(scale.scale, dtype=np.float32)), self._constant("zero", zero)

    def _node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operation.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operation, list(inputs), [name], **attributes))
        return name

    def _constant(self, word: str, value: Tensor | np.ndarray | np.float32 | list[int]) -> str:
        name = f"{word}_{len(self.constants)}"
        array = np.array(value, dtype=np.int64) if isinstance(value, list) else np.asarray(value)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name


def _window(geometry: Geometry) -> dict[str, Any]:
    return {"strides": geometry.stride, "pads": geometry.padding * 2, "dilations": geometry.dilation}
