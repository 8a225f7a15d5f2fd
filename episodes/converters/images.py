"""Decoding of images that a format stores as PNG or JPEG."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from episodes.errors import UnreadableData, needing


def pixels_of(images: Sequence[bytes | None], where: str, ndim: int = 3) -> np.ndarray:
    """Return the pixels of encoded images, [n, H, W, C].

    Args:
        images: the files, such as PNG or JPEG.
        where: name of the source, for errors.
        ndim: 3 for images with channels. Grey images have one channel then. 2 for [n, H, W].

    Raises:
        MissingExtra: pillow is not installed.
        UnreadableData: one is missing or damaged, or they have several sizes.
    """
    with needing("rlds", "images in tables need pillow"):
        from PIL import Image
    pixels = []
    for number, data in enumerate(images):
        if data is None:
            raise UnreadableData(f"{where}: image {number} is missing; give data that hold the images themselves")
        try:
            with Image.open(io.BytesIO(data)) as opened:
                array = np.asarray(opened)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UnreadableData(f"{where}: image {number} cannot be decoded: {error}; download it again") from None
        pixels.append(array[..., None] if array.ndim < ndim else array)
        if pixels[-1].shape != pixels[0].shape:
            shapes = f"{list(pixels[0].shape)} and {list(pixels[-1].shape)}"
            raise UnreadableData(f"{where}: images of the shapes {shapes}; those of an episode have one shape")
    return np.stack(pixels) if pixels else np.zeros((0,) * (ndim + 1), np.uint8)
