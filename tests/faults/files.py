"""Damaging checkpoints: the header of a safetensors file, and mutations of all its bytes."""

from __future__ import annotations

import json
import random
import struct
from typing import Any


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The JSON header of a safetensors file, and the bytes behind it."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header: Any, body: bytes) -> bytes:
    """A safetensors file with this header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def mutated(content: bytes, draw: random.Random) -> bytes:
    """The file with one thing wrong: flipped bits, a cut, an insertion, an edited header."""
    kind = draw.choice((_flipped, _cut, _inserted, _removed, _overwritten, _edited))
    return kind(content, draw)


def _place(content: bytes, draw: random.Random) -> int:
    """Anywhere, but half of the time in the header: that is where the reader has to think."""
    (length,) = struct.unpack("<Q", content[:8])
    return draw.randrange(8 + length if draw.random() < 0.5 else len(content))


def _flipped(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        changed[_place(content, draw)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: _place(content, draw)]


def _inserted(content: bytes, draw: random.Random) -> bytes:
    place = _place(content, draw)
    return content[:place] + draw.randbytes(draw.randint(1, 64)) + content[place:]


def _removed(content: bytes, draw: random.Random) -> bytes:
    place = _place(content, draw)
    return content[:place] + content[place + draw.randint(1, 64) :]


def _overwritten(content: bytes, draw: random.Random) -> bytes:
    place = _place(content, draw)
    junk = draw.randbytes(draw.randint(1, 64))
    return content[:place] + junk + content[place + len(junk) :]


def _edited(content: bytes, draw: random.Random) -> bytes:
    header, body = header_of(content)
    names = [name for name in header if name != "__metadata__"]
    name, other = draw.sample(names, 2)
    entry = header[name]
    edit = draw.randrange(8)
    if edit == 0:
        entry["dtype"] = draw.choice(("F64", "F16", "BF16", "I8", "U8", "BOOL", "F8_E4M3", "X", 3))
    elif edit == 1:
        entry["shape"] = draw.choice(([], [0], [2**62], [2**32, 2**32], [-1], [1.5], "3", None))
    elif edit == 2:
        entry["data_offsets"] = draw.choice(([0, 0], [8, 4], [0, 2**63], [0, 2**64], [-1, 4], []))
    elif edit == 3:
        entry["data_offsets"] = header[other]["data_offsets"]
    elif edit == 4:
        header[name], header[other] = header[other], header[name]
    elif edit == 5:
        del header[name]
    elif edit == 6:
        header[name + draw.choice(("x", "/", "\x00", "é"))] = header.pop(name)
    else:
        header["__metadata__"] = draw.choice(({}, None, [], {"manifest": "{}"}, {"manifest": 3}))
    return with_header(header, body)
