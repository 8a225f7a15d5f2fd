"""PNG encoding of arrays without an image library, for images on HTML pages."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from episodes.errors import ShapeMismatch

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}  # by number of channels: grey, RGB, RGBA
_PALETTE = 3


def png(pixels: np.ndarray, palette: np.ndarray | None = None) -> bytes:
    """Encode pixels, uint8 [H, W] or [H, W, 1 | 3 | 4], as the bytes of a PNG file.

    Args:
        palette: colours uint8 [k, 4] as red, green, blue and opacity. The pixels [H, W] are indices of colours then.

    Raises:
        ShapeMismatch: the pixels have another shape.

    >>> png(np.zeros((2, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[2] not in _COLOUR_TYPES:
        raise ShapeMismatch(f"pixels of shape {list(pixels.shape)}; give [H, W], or [H, W, 1, 3 or 4]")
    height, width, channels = pixels.shape
    colour = _COLOUR_TYPES[channels] if palette is None else _PALETTE
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each line begins with its filter; 0 is none
    lines[:, 1:] = pixels.reshape(height, -1)
    chunks = [_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))]
    if palette is not None:
        chunks += [_chunk(b"PLTE", palette[:, :3].tobytes()), _chunk(b"tRNS", palette[:, 3].tobytes())]
    chunks += [_chunk(b"IDAT", zlib.compress(lines.tobytes(), 4)), _chunk(b"IEND", b"")]
    return _SIGNATURE + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def is_png(value: object) -> bool:
    """Return True if a value is the bytes of a PNG file."""
    return isinstance(value, bytes) and value.startswith(_SIGNATURE)


def data_uri(file: bytes) -> str:
    """Return the bytes of a PNG file as a data URI for HTML."""
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"
