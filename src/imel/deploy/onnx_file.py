"""A policy as an ONNX graph: observations in, deterministic actions of the environment out.

observation -> normalise -> mean -> clip and scale, or argmax -> action
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imel.deploy.arrays import action_arrays, require_vectors
from imel.deploy.mean_nodes import mean_nodes
from imel.extras import require
from imel.files import write_atomically
from imel.policies import Policy

Array = NDArray[Any]
OPSET = 13
"""Version of the operators: the oldest that has all of them as they are used here."""
_IR_VERSION = 7
"""Version of the file format that came with these operators."""


class Graph:
    """Nodes and constants as they are added; values are known by their names.

    A policy or a feature map of your own writes itself with it: see `Policy.write_graph`.
    """

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str, outputs: Sequence[str] = (), **options: Any) -> str:
        """Add a node; return the name of its last output."""
        names = list(outputs) or [f"{operator.lower()}_{len(self.nodes)}"]
        self.nodes.append(self._onnx.helper.make_node(operator, inputs, names, **options))
        return names[-1]

    def constant(self, value: Tensor | Array | float | Sequence[int]) -> str:
        """Add a constant in single precision, or of integers; return its name."""
        array = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def clip(self, value: str, reach: float) -> str:
        """Add a limit to both sides."""
        return self.add("Clip", value, self.constant(-reach), self.constant(reach))

    def affine(
        self, value: str, weights: Tensor | Array, bias: Tensor | Array | None = None
    ) -> str:
        """Add x W + b."""
        names = [self.constant(weights)] + ([] if bias is None else [self.constant(bias)])
        return self.add("Gemm" if names[1:] else "MatMul", value, *names)

    def network(self, value: str, layers: Sequence[tuple[Tensor, Tensor]]) -> str:
        """Add a tanh network."""
        for number, (weights, bias) in enumerate(layers):
            value = self.affine(self.add("Tanh", value) if number else value, weights, bias)
        return value


def write_onnx(policy: Policy, path: Path, document: Mapping[str, Any] | None = None) -> None:
    """Write a policy to an .onnx file; `document` says what made it."""
    onnx = require("onnx", "onnx")
    require_vectors(policy)
    graph, normaliser = Graph(onnx), policy.normaliser
    with torch.no_grad():
        centred = graph.add("Sub", "observation", graph.constant(normaliser.centre))
        state = graph.add("Div", centred, graph.constant(normaliser.scale))
        mean = mean_nodes(graph, graph.clip(state, normaliser.clip), policy)
    discrete = _act(graph, mean, policy)
    kinds, helper = onnx.TensorProto, onnx.helper
    shape = ["batch", *(policy.action_space.shape or ())]
    described = helper.make_graph(
        graph.nodes,
        type(policy).__name__,
        [helper.make_tensor_value_info("observation", kinds.FLOAT, ["batch", policy.state_dim])],
        [helper.make_tensor_value_info("action", kinds.INT64 if discrete else kinds.FLOAT, shape)],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    versions = {"ir_version": _IR_VERSION, "opset_imports": opsets}
    model = helper.make_model(described, producer_name="imel", **versions)
    helper.set_model_props(model, {"imel": json.dumps(document or {})})
    onnx.checker.check_model(model, full_check=True)
    write_atomically(path, model.SerializeToString())


def _act(graph: Graph, mean: str, policy: Policy) -> bool:
    """Add everything from the mean to the action; return whether actions are discrete."""
    parts = action_arrays(policy)
    if "low" in parts:
        low, high = parts["low"], parts["high"]
        scaled = graph.add("Mul", graph.clip(mean, 1.0), graph.constant(0.5 * (high - low)))
        graph.add("Add", scaled, graph.constant(0.5 * (high + low)), outputs=["action"])
        return False
    ends, axis, chosen = np.cumsum(parts["sizes"]), graph.constant([1]), []
    for start, end in zip(ends - parts["sizes"], ends, strict=True):
        bounds = graph.constant([start]), graph.constant([end])
        logits = graph.add("Slice", mean, *bounds, axis)
        chosen.append(graph.add("ArgMax", logits, axis=1))  # [batch, 1]
    together = graph.add("Concat", *chosen, axis=1)
    numbers = graph.add("Add", together, graph.constant(parts["starts"]))
    shape = graph.constant([-1, *parts["shape"].tolist()])
    graph.add("Reshape", numbers, shape, outputs=["action"])
    return True
