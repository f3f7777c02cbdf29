"""`RidgePolicy` as a file that acts without torch: an ONNX graph, or plain arrays.

observation -> normalise -> mean -> clip and scale, or argmax -> action
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from imel.errors import ImelError
from imel.extras import require
from imel.files import write_atomically
from imel.policies import Policy, RidgePolicy
from imel.policies.ridge.features import REACH, RandomFeatures

Array = NDArray[Any]
OPSET, _IR_VERSION = 13, 7
"""Version of the operators, the oldest that has all of them as they are used here, and of the file
format that came with it."""


class Graph:
    """Nodes and constants as they are added; values are known by their names.

    A policy of your own writes itself with it by a method `write_graph(graph, state)`, a feature
    map by `write_graph(graph, state, coefficients)`: both return the name of the mean.
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

    def affine(self, value: str, weights: Tensor, bias: Tensor | None = None) -> str:
        """Add x W + b."""
        names = [self.constant(each) for each in (weights, bias) if each is not None]
        return self.add("MatMul" if bias is None else "Gemm", value, *names)


def write_onnx(policy: Policy, path: Path, document: Mapping[str, Any] | None = None) -> None:
    """Write a policy to an .onnx file; `document` says what made it."""
    onnx = require("onnx", "onnx")
    actions = _action_arrays(policy)
    graph, normaliser = Graph(onnx), policy.normaliser
    with torch.no_grad():
        centred = graph.add("Sub", "observation", graph.constant(normaliser.centre))
        state = graph.add("Div", centred, graph.constant(normaliser.scale))
        _act(graph, _mean(graph, graph.clip(state, normaliser.clip), policy), actions)
    kinds, helper = onnx.TensorProto, onnx.helper
    kind = kinds.FLOAT if "low" in actions else kinds.INT64
    shape = ["batch", *(policy.action_space.shape or ())]
    described = helper.make_graph(
        graph.nodes,
        type(policy).__name__,
        [helper.make_tensor_value_info("observation", kinds.FLOAT, ["batch", policy.state_dim])],
        [helper.make_tensor_value_info("action", kind, shape)],
        graph.constants,
    )
    versions = {"ir_version": _IR_VERSION, "opset_imports": [helper.make_opsetid("", OPSET)]}
    model = helper.make_model(described, producer_name="imel", **versions)
    helper.set_model_props(model, {"imel": json.dumps(document or {})})
    onnx.checker.check_model(model, full_check=True)
    write_atomically(path, model.SerializeToString())


def _act(graph: Graph, mean: str, actions: Mapping[str, Array]) -> None:
    """Add everything from the mean to the action."""
    if "low" in actions:
        low, high = actions["low"], actions["high"]
        scaled = graph.add("Mul", graph.clip(mean, 1.0), graph.constant(0.5 * (high - low)))
        graph.add("Add", scaled, graph.constant(0.5 * (high + low)), outputs=["action"])
        return
    ends, axis, chosen = np.cumsum(actions["sizes"]), graph.constant([1]), []
    for start, end in zip(ends - actions["sizes"], ends, strict=True):
        logits = graph.add("Slice", mean, graph.constant([start]), graph.constant([end]), axis)
        chosen.append(graph.add("ArgMax", logits, axis=1))  # [batch, 1]
    together = graph.add("Concat", *chosen, axis=1)
    numbers = graph.add("Add", together, graph.constant(actions["starts"]))
    shape = graph.constant([-1, *actions["shape"].tolist()])
    graph.add("Reshape", numbers, shape, outputs=["action"])


def _mean(graph: Graph, state: str, policy: Any) -> str:
    """Add a policy's mean at a normalised state; return the name of its output."""
    if hasattr(policy, "write_graph"):
        return str(policy.write_graph(graph, state))
    # Of exactly this way to act and these features: a subclass may compute something else
    if type(policy)._act is not RidgePolicy._act:
        raise ImelError(f"{type(policy).__name__} has no write_graph and cannot be exported")
    features, theta = policy.features, policy.coefficients.float()
    if type(features) is not RandomFeatures:
        return str(features.write_graph(graph, state, theta))
    inputs = len(features.directions)
    near = graph.clip(state, REACH)
    random = graph.add("Tanh", graph.affine(near, features.directions, features.offsets))
    linear = graph.affine(near, theta[1 : inputs + 1], theta[0])
    return graph.add("Add", linear, graph.affine(random, theta[inputs + 1 :]))


# --- plain arrays ---


def write_numpy(policy: Any, path: Path, document: Mapping[str, Any] | None = None) -> None:
    """Write a policy to an .npz file if it is a few arrays; `document` says what made it."""
    actions, features = _action_arrays(policy), getattr(policy, "features", None)
    if type(policy)._act is not RidgePolicy._act or type(features) is not RandomFeatures:
        raise ImelError(f"{type(policy).__name__} is not the few arrays of a RidgePolicy")
    arrays = {
        "imel": np.array(json.dumps(document or {})),
        "centre": policy.normaliser.centre.numpy(force=True),  # [d_s]
        "scale": policy.normaliser.scale.numpy(force=True),  # [d_s]
        "reach": np.array(min(REACH, policy.normaliser.clip), np.float32),
        "directions": features.directions.numpy(force=True),  # [d_s, m]
        "offsets": features.offsets.numpy(force=True),  # [m]
        "coefficients": policy.coefficients.float().numpy(force=True),  # [1 + d_s + m, d_a]
    }
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays, **actions)
    write_atomically(path, content.getvalue())


def _action_arrays(policy: Policy) -> dict[str, Array]:
    """Return the bounds of actions, or the choices; refuse a policy with a features extractor."""
    if policy.features_extractor is not None:
        observed = policy.observation_space
        raise ImelError(f"only policies that observe vectors are exported to act, not {observed}")
    space, distribution = policy.action_space, policy.distribution
    if isinstance(space, spaces.Box):
        return {"low": space.low.astype(np.float32), "high": space.high.astype(np.float32)}
    return {
        "sizes": np.array(distribution.sizes, np.int64),
        "starts": np.array(distribution.starts, np.int64),
        "shape": np.array(space.shape, np.int64),
    }
