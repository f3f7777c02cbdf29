"""Arrays for the page in one binary answer, so that a hundred thousand memories are a moment.

    uint32 length of the header | header: JSON, padded with spaces to a multiple of 4 | float32 ...

all little-endian. The header's `arrays` names what follows: `[[name, [shape]], ...]`, in order.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEDIA_TYPE = "application/vnd.imel.arrays"


def pack(document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A JSON document and arrays as one run of bytes."""
    layout = [[name, list(array.shape)] for name, array in arrays.items()]
    header = json.dumps({**document, "arrays": layout}, allow_nan=False).encode()
    header += b" " * (-len(header) % 4)
    body = [np.ascontiguousarray(array, dtype="<f4").tobytes() for array in arrays.values()]
    return b"".join([struct.pack("<I", len(header)), header, *body])


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """What `pack` made; the page's own reader does the same."""
    (length,) = struct.unpack_from("<I", content)
    document: dict[str, Any] = json.loads(content[4 : 4 + length])
    arrays, offset = {}, 4 + length
    for name, shape in document.pop("arrays"):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(content, "<f4", count, offset).reshape(shape)
        offset += 4 * count
    return document, arrays
