"""Settings of earlier versions, and what became of each: said where one is still given."""

from __future__ import annotations

_DEFAULT = "it was a part of the former default, which is gone"

GONE: dict[str, str] = {
    "update": "each policy has one update: RidgePolicy its own, the others the paper's",
    "preset": "each policy has one set of defaults",
    "critic_batch_size": "it is called batch_size",
    "improved_size": _DEFAULT,
    "cooling": _DEFAULT,
    "easing": "steps are shorter where advantages are small beside the deviation of the return",
    "easing_floor": _DEFAULT,
    "settling": _DEFAULT,
    "peak_kl": "the bound on single states is ten trust regions",
    "anchor_size": "RidgePolicy keeps its coefficients, not an anchor of memories",
    "forgetting": "the oldest rollouts are forgotten first",
    "forgetting_unit": "whole rollouts are forgotten",
    "newest_kept": "the oldest rollouts are forgotten first",
    "std_of": "each family has one meaning of std",
    "entropy_bonus": _DEFAULT,
    "waves": "it is called features",
    "acting_index": "actions are computed from the whole memory",
}
