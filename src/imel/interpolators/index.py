"""The kernel average over the nearest memories only, found by an approximate index (faiss).

For memories so large that meeting every one of them costs more than the environment. Features are
clustered; a query meets the memories of the clusters nearest to it and averages its closest ones.
Every fit moves the features, so the index is made again whenever the policy is conditioned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from imel.errors import SettingsError
from imel.kernels import PreparedAverage

_NEIGHBOURS = 256
"""Memories averaged."""
_PROBED, _LEAST_PROBED = 32, 64
"""One in this many clusters is searched, and at least so many."""
_ROWS_PER_CLUSTER = 39
"""The fewest that clusters are found from without faiss complaining."""


def import_faiss() -> Any:
    """The library, or a sentence that says what to install."""
    try:
        import faiss
    except ImportError:
        raise SettingsError("acting_index='faiss' needs faiss: pip install 'imel[index]'") from None
    return faiss


class IndexedAverage:
    """Softmax weights on the nearest keys, none on the others."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        faiss = import_faiss()
        self.values = values
        self._keys = keys
        count, width = keys.shape
        lists = max(1, min(int(4 * count**0.5), count // _ROWS_PER_CLUSTER))
        self._quantiser = faiss.IndexFlatL2(width)  # faiss does not keep it alive
        self._index = faiss.IndexIVFFlat(self._quantiser, width, lists)
        self._index.cp.niter = 4
        self._index.cp.max_points_per_centroid = _ROWS_PER_CLUSTER
        rows = keys.contiguous().cpu().numpy()
        self._index.train(rows)
        self._index.add(rows)
        self._index.nprobe = max(_LEAST_PROBED, lists // _PROBED)

    def __call__(self, queries: Tensor) -> Tensor:
        """y at each query."""  # [T, d] -> [T, d_v]
        places, shares = self._nearest(queries)
        return (shares[:, :, None] * self.values[places]).sum(dim=1)

    def weights(self, queries: Tensor) -> Tensor:
        """The share of each key in the answer for each query."""  # [T, N]
        places, shares = self._nearest(queries)
        return shares.new_zeros(len(queries), len(self.values)).scatter_add_(1, places, shares)

    def error(self, queries: Tensor) -> float:
        """Median distance from the exact average, in deviations of the exact averages."""
        exact = PreparedAverage(self._keys, self.values)(queries)
        distance = (self(queries) - exact).norm(dim=1).median()
        spread = (exact - exact.mean(dim=0)).square().sum(dim=1).mean().sqrt()
        return float(distance / spread.clamp_min(1e-12))

    def _nearest(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Places of the nearest keys and their shares."""  # [T, k], [T, k]
        count = min(_NEIGHBOURS, len(self.values))
        found = self._index.search(queries.contiguous().cpu().numpy(), count)
        squares, places = (torch.from_numpy(x).to(queries.device) for x in found)
        # The clusters searched may hold fewer: faiss fills up with -1
        squares = squares.masked_fill(places < 0, torch.inf)
        return places.clamp_min_(0), (-squares).softmax(dim=1)
