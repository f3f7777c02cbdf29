"""The nodes of a policy's mean, by the kind of what it is computed from.

What writes itself goes first: a policy with a `write_graph` of its own, or a feature map with one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from imel.data.experience import Context
from imel.policies import Policy
from imel.policies.paper.attentive import AttentionPath, AttentiveNeuralProcess
from imel.policies.paper.mki import MeanKernelInterpolation
from imel.policies.paper.nearest import NearestNeighbours
from imel.policies.paper.neural_process import NeuralProcess, pairs
from imel.policies.paper.regressor import Regressor
from imel.policies.ridge.features import REACH, RandomFeatures

if TYPE_CHECKING:
    from imel.deploy.onnx_file import Graph


def mean_nodes(graph: Graph, state: str, policy: Any) -> str:
    """Add a policy's mean at a normalised state; return the name of its output."""
    if type(policy).write_graph is Policy.write_graph:
        if hasattr(policy, "coefficients"):
            return _linear(graph, state, policy.features, policy.coefficients.float())
        # Of exactly these classes: a subclass may compute something else
        write = _INTERPOLATORS.get(type(getattr(policy, "interpolator", None)))
        if write is not None:
            return write(graph, state, policy.interpolator, policy.context())
    name: str = policy.write_graph(graph, state)
    return name


def _linear(graph: Graph, state: str, features: Any, theta: Tensor) -> str:
    if type(features) is not RandomFeatures:
        name: str = features.write_graph(graph, state, theta)
        return name
    inputs = len(features.directions)
    near = graph.clip(state, REACH)
    random = graph.add("Tanh", graph.affine(near, features.directions, features.offsets))
    linear = graph.affine(near, theta[1 : inputs + 1], theta[0])
    return graph.add("Add", linear, graph.affine(random, theta[inputs + 1 :]))


def _mki(graph: Graph, state: str, model: MeanKernelInterpolation, context: Context) -> str:
    query = graph.affine(_embedded(graph, state, model.network, model.skip), model.L)
    keys = model.embed(context.states)
    return _kernel(graph, query, keys, context.values, model.settings.normalised)


def _nearest(graph: Graph, state: str, model: NearestNeighbours, context: Context) -> str:
    rows = graph.add("Unsqueeze", state, graph.constant([1]))  # [batch, 1, d_s]
    apart = graph.add("Sub", rows, graph.constant(context.states))  # [batch, N, d_s]
    distances = graph.add("ReduceSumSquare", apart, axes=[2], keepdims=0)
    count = graph.constant([min(model.settings.neighbours, len(context))])
    named = ("nearest_distances", "nearest_places")
    places = graph.add("TopK", distances, count, outputs=named, axis=1, largest=0)
    values = graph.add("Gather", graph.constant(context.values), places, axis=0)
    return graph.add("ReduceMean", values, axes=[1], keepdims=0)


def _decoded(graph: Graph, state: str, model: NeuralProcess, context: Context) -> str:
    """Add the decoder; what is the same for every state goes into the bias of its first layer."""
    summary = [model.latent(model.encoder(pairs(context)).mean(dim=0)).mean]
    inputs, width = state, context.states.shape[1]
    (weights, bias), *others = _layers(model.decoder)
    varying = weights[:width]
    if isinstance(model.path, AttentionPath):
        query = _embedded(graph, state, model.path.embed, model.path.skip)
        keys, encoded = model.path.features(context.states), model.path.encoder(pairs(context))
        inputs = graph.add("Concat", state, _kernel(graph, query, keys, encoded), axis=1)
        varying = torch.cat([varying, weights[width + summary[0].numel() :]])
    elif model.path is not None:
        summary.append(model.path.condition(context)(context.states[:1])[0])
    constant = torch.cat(summary)
    bias = bias + constant @ weights[width : width + constant.numel()]
    last, last_bias = others.pop()
    half = last.shape[1] // 2  # the other half is sigma
    return graph.network(inputs, [(varying, bias), *others, (last[:, :half], last_bias[:half])])


_INTERPOLATORS: dict[type[Any], Callable[[Graph, str, Any, Context], str]] = {
    MeanKernelInterpolation: _mki,
    NearestNeighbours: _nearest,
    NeuralProcess: _decoded,
    AttentiveNeuralProcess: _decoded,
    Regressor: lambda graph, state, model, _: graph.network(state, _layers(model.network)),
}


def _layers(network: nn.Sequential) -> list[tuple[Tensor, Tensor]]:
    """Return the weights and biases of a network, as a graph takes them."""
    return [(layer.weight.T, layer.bias) for layer in network if isinstance(layer, nn.Linear)]


def _embedded(graph: Graph, value: str, network: nn.Sequential, skip: nn.Linear) -> str:
    """Add a tanh network with a linear path beside it."""
    linear = graph.affine(value, skip.weight.T)
    return graph.add("Add", graph.network(value, _layers(network)), linear)


def _kernel(graph: Graph, query: str, keys: Tensor, values: Tensor, normalised: bool = True) -> str:
    """Add the kernel average of `imel.policies.paper.mki`."""
    centre = keys.mean(dim=0)
    keys = keys - centre
    query = graph.add("Sub", query, graph.constant(centre))
    weights = graph.affine(query, 2.0 * keys.T, -keys.square().sum(dim=1))
    if normalised:
        weights = graph.add("Softmax", weights, axis=1)
    else:
        square = graph.add("ReduceSumSquare", query, axes=[1])
        weights = graph.add("Exp", graph.add("Sub", weights, square))
    return graph.affine(weights, values)
