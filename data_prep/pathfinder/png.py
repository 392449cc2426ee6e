"""Decode PNG images of Pathfinder, many of them by processes: python -P png.py SIZE is one.

Decoding a small image is mostly Python code, of which the threads of a process run one at a time. A process reads lines
from its standard input, each a JSON list of paths. For each line it writes a byte for each path, 1 if it is an image of
SIZE x SIZE pixels, and then the pixels of these images. It ends with its input, and so with its parent process.
"""

import io
import json
import queue
import signal
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
from PIL import Image, UnidentifiedImageError

MANY = 4096  # images from which starting processes, which takes a third of a second, is worth it


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


def read_image(path: str, size: int) -> np.ndarray | None:
    """Decode a file; None if it is missing or no image of this size."""
    try:
        with open(path, "rb") as file:
            return decode(file.read(), size)
    except OSError:
        return None


class Decoders:
    """Processes that decode files. Threads share them: each request takes a process that is idle.

    Args:
        size: side of an image in pixels.
        count: number of processes; 0 to decode in the calling thread.
    """

    def __init__(self, size: int, count: int):
        self.size = size
        self.processes: list[subprocess.Popen] = []
        self.idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
        command = [sys.executable, "-P", __file__, str(size)]
        for _ in range(count):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.processes.append(process)
            self.idle.put(process)

    def read(self, paths: Sequence[str]) -> list[np.ndarray | None]:
        """Decode files, None for each that is missing or no image."""
        if not self.processes:
            return [read_image(path, self.size) for path in paths]
        process = self.idle.get()
        try:
            process.stdin.write(json.dumps(paths).encode() + b"\n")
            process.stdin.flush()
            flags = process.stdout.read(len(paths))
            pixels = process.stdout.read(sum(flags) * self.size**2)
        finally:
            self.idle.put(process)
        if len(flags) < len(paths) or len(pixels) < sum(flags) * self.size**2:
            raise ValueError("a process that decodes images has ended; prepare again with workers=1")
        images = iter(np.frombuffer(pixels, np.uint8).reshape(-1, self.size, self.size))
        return [next(images) if flag else None for flag in flags]

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.stdin.close()
            process.stdout.close()
            process.wait()
        self.processes = []


def serve(size: int) -> None:
    """Answer requests until the standard input ends."""
    for line in sys.stdin.buffer:
        images = [read_image(path, size) for path in json.loads(line)]
        sys.stdout.buffer.write(bytes(image is not None for image in images))
        for image in images:
            if image is not None:
                sys.stdout.buffer.write(image.tobytes())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    # An interrupt is for the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(int(sys.argv[1]))
