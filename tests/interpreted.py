"""Triton's interpreter, which runs GPU kernels on the CPU, put right where it differs from a GPU.

It multiplies matrices of bfloat16 as if their bits were integers, and cuts numbers off where a GPU
rounds them to bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products and conversions of bfloat16 be those of a GPU."""
    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def true_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, _float32(a), _float32(b), *rest)

    def true_cast(self: Any, source: Any, dtype: Any) -> Any:
        if (source.dtype.scalar, dtype.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, source, dtype)
        rounded = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.bfloat16)
        return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", true_dot)
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", true_cast)


def _float32(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = handle.data.astype(np.uint32) << 16
    return TensorHandle(bits.view(np.float32), tl.float32)
