"""The picture of `imel probe`: what each interpolator improves, and how far off its means are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from imel.pictures.style import quiet_axes
from imel.probe.measures import KL, Judgement

_GAIN, _MISFIT, _NOTHING = "#2166ac", "#e08214", "#8a8a8a"


def probe_figure(title: str, acting: float, probed: Sequence[Judgement]) -> Figure:
    """Draw gains on the left and errors on the right, a line for each interpolator."""
    figure = Figure(figsize=(11, 1.8 + 0.36 * len(probed)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    figure.suptitle(title, fontsize=13)
    places = np.arange(len(probed))[::-1]
    for axes, kind, colour in ((left, "gain", _GAIN), (right, "misfit", _MISFIT)):
        values, errors = np.array([getattr(each, kind) for each in probed]).T
        style = {"fmt": "o", "capsize": 4, "linewidth": 2, "color": colour}
        axes.errorbar(values, places, xerr=errors, **style)
        quiet_axes(axes)
    left.axvline(0.0, color=_NOTHING, linewidth=1)
    left.set_yticks(places, [each.name for each in probed])
    left.set_ylim(-0.6, len(probed) - 0.4)
    left.set_title("more is better", fontsize=10)
    left.set_xlabel(f"gain: held-out improvement at a mean KL of {KL:g}\n(± standard error)")
    right.axvline(acting, color=_NOTHING, linestyle="--", linewidth=1, label="acting means, known")
    right.set_xscale("log")
    right.set_title("less is better", fontsize=10)
    right.set_xlabel("held-out error of improved means\n(share of their variance)")
    figure.legend(loc="outside lower center", fontsize=9)
    return figure
