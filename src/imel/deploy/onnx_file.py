"""A policy as an ONNX graph: observations in, deterministic actions of the environment out.

    observation -> normalise -> mean -> clip and scale, or argmax -> action

The graph is built operator by operator: exporters of torch need more packages than onnx alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from imel.data.experience import Context
from imel.deploy.arrays import actions, require_vectors, ridge_arrays
from imel.errors import ImelError
from imel.extras import require
from imel.files import write_atomically
from imel.policies import Policy, RidgePolicy
from imel.policies.paper.attentive import AttentionPath
from imel.policies.paper.mki import MeanKernelInterpolation
from imel.policies.paper.nearest import NearestNeighbours
from imel.policies.paper.neural_process import NeuralProcess, pairs
from imel.policies.paper.paper_policy import PaperPolicy
from imel.policies.paper.regressor import Regressor

OPSET = 13
"""Version of the operators: the oldest that has all of them as they are used here."""
_IR_VERSION = 7
"""Version of the file format that came with these operators."""

Array = NDArray[Any]


def write_onnx(policy: Policy, path: Path, document: Mapping[str, Any] | None = None) -> None:
    """Write a policy to an .onnx file; `document` says what made it."""
    onnx = require("onnx", "onnx")
    require_vectors(policy)
    graph = _Graph(onnx)
    with torch.no_grad():
        discrete = _act(graph, policy)
    kinds, helper = onnx.TensorProto, onnx.helper
    shape = ["batch", *(policy.action_space.shape or ())]
    described = helper.make_graph(
        graph.nodes,
        type(policy).__name__,
        [helper.make_tensor_value_info("observation", kinds.FLOAT, ["batch", policy.state_dim])],
        [helper.make_tensor_value_info("action", kinds.INT64 if discrete else kinds.FLOAT, shape)],
        graph.constants,
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(
        described, producer_name="imel", ir_version=_IR_VERSION, opset_imports=[opset]
    )
    helper.set_model_props(model, {"imel": json.dumps(document or {})})
    onnx.checker.check_model(model, full_check=True)
    write_atomically(path, model.SerializeToString())


class _Graph:
    """Nodes and constants as they are added; values are known by their names."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        name = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def add_second(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with two outputs; return the name of the second."""
        names = [f"{operator.lower()}_{len(self.nodes)}_{i}" for i in range(2)]
        self.nodes.append(self._onnx.helper.make_node(operator, inputs, names, **attributes))
        return names[1]

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

    def features(self, value: str, network: nn.Sequential, skip: nn.Linear) -> str:
        """Add a tanh network with a linear path beside it."""
        linear = self.affine(value, skip.weight.T)
        return self.add("Add", self.network(value, _layers(network)), linear)

    def kernel(self, query: str, keys: Tensor, values: Tensor, normalised: bool = True) -> str:
        """Add the kernel average of `imel.policies.paper.kernels`."""
        centre = keys.mean(dim=0)
        keys = keys - centre
        query = self.add("Sub", query, self.constant(centre))
        weights = self.affine(query, 2.0 * keys.T, -keys.square().sum(dim=1))
        if normalised:
            weights = self.add("Softmax", weights, axis=1)
        else:
            square = self.add("ReduceSumSquare", query, axes=[1])
            weights = self.add("Exp", self.add("Sub", weights, square))
        return self.affine(weights, values)


def _act(graph: _Graph, policy: Policy) -> bool:
    """Add everything from the observation to the action; return whether actions are discrete."""
    normaliser = policy.normaliser
    centred = graph.add("Sub", "observation", graph.constant(normaliser.centre))
    state = graph.add("Div", centred, graph.constant(normaliser.scale))
    state = graph.clip(state, normaliser.clip)
    if policy.lessons is not None:
        mean = _ridge_mean(graph, state, policy)
    elif isinstance(policy, PaperPolicy):
        mean = _interpolated_mean(graph, state, policy)
    else:
        raise ImelError(f"{type(policy).__name__} cannot be exported to act")
    parts = actions(policy)
    if "low" in parts:
        low, high = parts["low"], parts["high"]
        scaled = graph.add("Mul", graph.clip(mean, 1.0), graph.constant(0.5 * (high - low)))
        graph.add("Add", scaled, graph.constant(0.5 * (high + low)), output="action")
        return False
    ends = np.cumsum(parts["sizes"])
    axis = graph.constant([1])
    chosen = [
        graph.add(
            "ArgMax",
            graph.add("Slice", mean, graph.constant([start]), graph.constant([end]), axis),
            axis=1,
        )
        for start, end in zip(ends - parts["sizes"], ends, strict=True)
    ]  # each [batch, 1]
    together = graph.add("Concat", *chosen, axis=1)
    numbers = graph.add("Add", together, graph.constant(parts["starts"]))
    shape = graph.constant([-1, *parts["shape"].tolist()])
    graph.add("Reshape", numbers, shape, output="action")
    return True


def _ridge_mean(graph: _Graph, state: str, policy: RidgePolicy) -> str:
    parts = ridge_arrays(policy)
    inputs = policy.state_dim
    near = graph.clip(state, float(parts["reach"]))
    random = graph.add("Tanh", graph.affine(near, parts["directions"], parts["offsets"]))
    theta = parts["coefficients"]
    linear = graph.affine(near, theta[1 : inputs + 1], theta[0])
    return graph.add("Add", linear, graph.affine(random, theta[inputs + 1 :]))


def _interpolated_mean(graph: _Graph, state: str, policy: PaperPolicy) -> str:
    model, context = policy.interpolator, policy.context()
    if isinstance(model, MeanKernelInterpolation):
        query = graph.affine(graph.features(state, model.network, model.skip), model.L)
        keys = model.embed(context.states)
        return graph.kernel(query, keys, context.values, model.options.normalised)
    if isinstance(model, NearestNeighbours):
        return _nearest_mean(graph, state, context, model.options.neighbours)
    if isinstance(model, NeuralProcess):
        return _decoded_mean(graph, state, context, model)
    assert isinstance(model, Regressor)
    return graph.network(state, _layers(model.network))


def _nearest_mean(graph: _Graph, state: str, context: Context, neighbours: int) -> str:
    rows = graph.add("Unsqueeze", state, graph.constant([1]))  # [batch, 1, d_s]
    apart = graph.add("Sub", rows, graph.constant(context.states))  # [batch, N, d_s]
    distances = graph.add("ReduceSumSquare", apart, axes=[2], keepdims=0)
    count = graph.constant([min(neighbours, len(context))])
    places = graph.add_second("TopK", distances, count, axis=1, largest=0)
    values = graph.add("Gather", graph.constant(context.values), places, axis=0)
    return graph.add("ReduceMean", values, axes=[1], keepdims=0)


def _decoded_mean(graph: _Graph, state: str, context: Context, model: NeuralProcess) -> str:
    """Add the decoder; what is the same for every state goes into the bias of its first layer."""
    summary = [model.latent(model.encoder(pairs(context)).mean(dim=0)).mean]
    inputs, width = state, context.states.shape[1]
    (weights, bias), *others = _layers(model.decoder)
    varying = weights[:width]
    if isinstance(model.path, AttentionPath):
        query = graph.features(state, model.path.embed, model.path.skip)
        keys, encoded = model.path.features(context.states), model.path.encoder(pairs(context))
        inputs = graph.add("Concat", state, graph.kernel(query, keys, encoded), axis=1)
        varying = torch.cat([varying, weights[width + summary[0].numel() :]])
    elif model.path is not None:
        summary.append(model.path.condition(context)(context.states[:1])[0])
    constant = torch.cat(summary)
    bias = bias + constant @ weights[width : width + constant.numel()]
    last, last_bias = others.pop()
    half = last.shape[1] // 2  # the other half is sigma
    layers = [(varying, bias), *others, (last[:, :half], last_bias[:half])]
    return graph.network(inputs, layers)


def _layers(network: nn.Sequential) -> list[tuple[Tensor, Tensor]]:
    return [(layer.weight.T, layer.bias) for layer in network if isinstance(layer, nn.Linear)]
