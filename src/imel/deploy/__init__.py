"""Policies as files that act without torch: ONNX graphs of all, plain arrays of `RidgePolicy`."""

from imel.deploy.arrays import write_numpy
from imel.deploy.onnx_file import write_onnx

__all__ = ["write_numpy", "write_onnx"]
