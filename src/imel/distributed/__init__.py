"""Experience gathered by several machines: samplers for `IMeL(..., sampler=...)`.

Ray is imported when a `RaySampler` first makes environments, not before.
"""

from imel.distributed.episodes import SerialSampler
from imel.distributed.ray_sampler import RaySampler

__all__ = ["RaySampler", "SerialSampler"]
