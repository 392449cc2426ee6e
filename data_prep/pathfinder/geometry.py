"""Geometry of Pathfinder's paddles: directions, disks, dilation and resampling.

Coordinates are (y, x) in pixels, angles radians with theta = atan2(dy, dx).
"""

import math

import numpy as np
from PIL import Image
from scipy import ndimage


def shrink(canvas: np.ndarray, side: int) -> np.ndarray:
    """Shrink uint8 (n, n) to (side, side) by Lanczos resampling, with overshoot clipped to 0..255."""
    image = Image.fromarray(canvas)
    small = image.resize((side, side), Image.Resampling.LANCZOS)
    return np.asarray(small)


def disk(radius: int) -> np.ndarray:
    """bool (2 radius + 1, 2 radius + 1): cells with y^2 + x^2 <= radius^2 around the centre."""
    span = slice(-radius, radius + 1)
    y, x = np.mgrid[span, span]
    return y**2 + x**2 <= radius**2


def dilate(patch: np.ndarray, footprint: np.ndarray) -> np.ndarray:
    """Grey dilation (n, n) -> (n, n) by a flat element, a symmetric footprint around its centre; outside is 0."""
    return ndimage.grey_dilation(patch, footprint=footprint, mode="constant")


def fill_rows(patches: np.ndarray, value: int) -> np.ndarray:
    """Fill rows with a value up to a multiple of 8: (P, side, side) -> (P, side, 8 n)."""
    side = patches.shape[-1]
    missing = -side % 8
    widths = ((0, 0), (0, 0), (0, missing))
    return np.pad(patches, widths, constant_values=value)


def polar(distance: float, theta: float) -> tuple[float, float]:
    """The point (y, x) at a distance and a direction."""
    y = distance * math.sin(theta)
    x = distance * math.cos(theta)
    return y, x


def radians(degree: int) -> float:
    """Convert as the original does; math.radians rounds differently."""
    return degree * math.pi / 180


def opposite(theta: float) -> float:
    """theta +- pi within [-pi, pi] as in the original, since ceil(sin(pi)) and ceil(sin(-pi)) differ."""
    return theta + math.pi if theta < 0 else theta - math.pi
