"""The names, labels and images of the official Pathfinder files.

They are curv_contour_length_14/imgs/N/sample_i.png (curv_baseline and curv_contour_length_9 for the shorter curves),
below pathfinder32, pathfinder64, pathfinder128 or pathfinder256. metadata/N.npy next to imgs are texts, in which
each line describes an image: folder, file, number, label and parameters.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from ..formats.layout import decode_image
from ..lines import text_lines

FOLDERS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
CONTOUR_OF_FOLDER = {folder: contour for contour, folder in FOLDERS.items()}
BLOCK = 512  # files that a thread reads at a time
REMEDY = "source.release must be the folder of pathfinder32 and others, a folder above it, or the archive"

Listed = list[tuple[str, int]]  # (imgs/N/sample_i.png, label) of each image


def listing(metadata: Mapping[str, Iterable[bytes]], where: str) -> Listed:
    """List the images of metadata/<key>.npy by ascending number. Raises ValueError for a bad line or no metadata."""
    if not metadata:
        raise ValueError(f"{where} has no metadata/*.npy: {REMEDY}")
    entries = []
    # The numbers in their order: 8, 9, 10.
    for stem in sorted(metadata, key=lambda stem: (len(stem), stem)):
        name = f"{where}/metadata/{stem}.npy"
        for number, line in text_lines(metadata[stem], name):
            fields = line.decode(errors="replace").split()
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise ValueError(f"{name}, line {number}: not a folder, a file, a number and a label")
            folder, file, _, label = fields[:4]
            entries.append((f"{folder}/{file}", int(label)))
    return entries


def decode(data: bytes | None, size: int) -> np.ndarray | None:
    """Decode an image to grey levels (size, size) uint8; None if unreadable, over 8 bits deep or of another size."""
    if not data:
        return None
    try:
        pixels = decode_image(data)
    except ValueError:
        return None
    return pixels if pixels.shape == (size, size) else None
