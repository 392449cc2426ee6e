"""The files of a small release of Pathfinder, as tests of layouts and of lra data inspect change them."""

import functools

import numpy as np
from server import png

from data_prep.pathfinder.generator import generate
from data_prep.pathfinder.listing import FOLDERS

# Number of images.
COUNT = 60
INNER = f"pathfinder32/{FOLDERS[14]}"


@functools.cache
def labelled_images(contour: int = 14) -> list[tuple[int, bytes]]:
    """(label, pixels) of each generated image."""
    images, labels = generate(size=32, count=COUNT, seed=3, contour=contour)
    return [(int(label), image.tobytes()) for image, label in zip(images, labels, strict=True)]


def image_files(contour: int = 14, **changes: bytes | None) -> dict[str, bytes]:
    """Files of the release folder of a contour length; ``changes`` replaces or adds files, None removes one."""
    files, lines = {}, {}
    for i, (label, pixels) in enumerate(labelled_images(contour)):
        # Batches 8, 9 and 10 of up to 25 images: their alphabetical order differs from their numerical order.
        batch = 8 + i // 25
        files[f"imgs/{batch}/sample_{i}.png"] = png(np.frombuffer(pixels, np.uint8).reshape(32, 32))
        lines.setdefault(batch, []).append(f"imgs/{batch} sample_{i}.png {i} {label} 1.8 4 14 0.3 5 3.5 4 2")
    files |= {f"metadata/{batch}.npy": "\n".join(text).encode() + b"\n" for batch, text in lines.items()}
    return {name: data for name, data in (files | changes).items() if data is not None}


# Changes of ``image_files``: 40 equal images, and no metadata.
EYE = png(np.eye(32, dtype=np.uint8))
EQUAL_IMAGES = {f"imgs/{8 + i // 25}/sample_{i}.png": EYE for i in range(40)}
NO_METADATA = dict.fromkeys(["metadata/8.npy", "metadata/9.npy", "metadata/10.npy"])
