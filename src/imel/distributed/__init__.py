"""Experience gathered by several machines: `IMeL(..., sampler=RaySampler(n))`.

Ray is imported when a `RaySampler` first makes environments, not before.
"""

from imel.distributed.ray_sampler import RaySampler

__all__ = ["RaySampler"]
