"""Decode PNG images of Pathfinder."""

import io

import numpy as np
from PIL import Image, UnidentifiedImageError


def decode(data: bytes | None, size: int) -> np.ndarray | None:
    """Decode grey pixels (size, size) uint8; None if the bytes are no such image."""
    if not data:
        return None
    try:
        with Image.open(io.BytesIO(data)) as image:
            pixels = np.asarray(image.convert("L"))
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    return pixels if pixels.shape == (size, size) else None
