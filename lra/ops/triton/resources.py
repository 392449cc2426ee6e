"""Registers, shared memory and spills of every launch, compiled ahead of time without a GPU.

    python -m lra.ops.triton.resources [arch=80,90,100] [dtype=bf16,fp16,fp32] [m=16,32,64,128] [d=16,32,64,128]
                                   [kernel=rv,out,c_backward,r_backward,scatter,score,inverse,inverse_backward]

The compilation of a launch takes 1 to 10 s, with the inverse of 64 selected rows up to two minutes, because
products of split float32 factors are unrolled. Triton caches the result in TRITON_CACHE_DIR.
"""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import itertools
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch._subclasses import FakeTensorMode

from . import interpreted

CHOICES = {
    "arch": ("80", "90", "100"),
    "dtype": ("bf16", "fp16", "fp32"),
    "m": ("16", "32", "64", "128"),
    "d": ("16", "32", "64", "128"),
    "kernel": ("rv", "out", "c_backward", "r_backward", "scatter", "score", "inverse", "inverse_backward"),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TYPES = {kind: f"*{name}" for name, kind in (DTYPES | {"i64": torch.int64, "u8": torch.uint8}).items()}
COLUMNS = ("arch", "dtype", "m", "d", "kernel", "block", "warps", "stages", "registers", "spilled", "shared")


def compile_launches(arch: str, dtype: str, m: str, d: str, kernels: tuple[str, ...]) -> list[tuple]:
    """Compile each launch of the selection scores and of a forward and backward pass with a mask and copied rows.

    Args:
        arch, dtype, m, d: one value for each axis of the command line.
        kernels: kernels to compile.

    Returns:
        A row of COLUMNS for each launch. ``block``: positions of the sequence at a time, 0 for kernels of one head
        (scatter, inverse, inverse_backward); ``spilled``: bytes per thread; ``shared``: bytes per program. If a kernel
        is launched several times, for some of its gradients each time, their names follow the kernel's name, as in
        c_backward-dq-dk.
    """
    from . import launch
    from .selection_scores import launch_scores

    table_rows = []

    def compile(kernel, grid, *args, warps, stages, **constants):
        name = kernel.__name__.removesuffix("_kernel")
        if name not in kernels:
            return
        # Name the gradients of a launch that computes only a part of them.
        gradients = [part for part in ("DW", "DV", "DQ", "DK") if part in constants]
        computed = [part for part in gradients if constants[part]]
        if computed != gradients:
            name += "".join(f"-{part.lower()}" for part in computed)
        usage = _compile(kernel, args, constants, arch, warps, stages)
        block = constants.get("BN", 0)
        table_rows.append((arch, dtype, m, d, name, block, warps, stages, *usage))

    N = 512
    H = 2
    L = 4096
    M = int(m)
    D = int(d)
    with FakeTensorMode():
        q, k, v = (torch.empty(N, L, H, D, dtype=DTYPES[dtype]).transpose(1, 2) for _ in range(3))
        index = torch.empty(N, H, M, dtype=torch.int64)
        mask = torch.empty(N, L, dtype=torch.uint8)
        real = mask[:, None].expand(-1, H, -1)
        selected = launch.Selected(q, k, index, index, real, real)
        out, *saved = launch.forward(q, k, v, selected, mask, 6, True, True, run=compile, arch=int(arch))
        launch.backward(out, q, k, v, selected, mask, *saved, 6, True, True, run=compile, arch=int(arch))
        launch_scores(q, k, mask, "abs", False, run=compile)
    return table_rows


def _compile(kernel, args, constants, arch, warps, stages) -> tuple[int, int, int]:
    """Compile a kernel for its arguments; return registers, bytes spilled and bytes of shared memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    # The types of the arguments, as a launch would specialise them.
    signature = {}
    fixed = {}
    attributes = {}
    for i, name in enumerate(kernel.arg_names):
        value = args[i] if i < len(args) else constants[name]
        is_specialised = not kernel.params[i].do_not_specialize
        is_one = isinstance(value, int) and value == 1 and is_specialised
        if i >= len(args) or value is None or is_one:
            signature[name] = "constexpr"
            fixed[(i,)] = value
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            is_tensor = isinstance(value, torch.Tensor)
            signature[name] = TYPES[value.dtype] if is_tensor else "i32"
            if is_tensor or (value % 16 == 0 and is_specialised):
                attributes[(i,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=fixed, attrs=attributes),
        target=GPUTarget("cuda", int(arch), 32),
        options={"num_warps": warps, "num_stages": stages},
    )

    # Read the resources from the binary.
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        command = [tool, "-res-usage", cubin.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counts = {}
    for word in ("REG", "STACK", "LOCAL"):
        counts[word] = int(re.search(rf"{word}:(\d+)", usage).group(1))
    return counts["REG"], max(counts["STACK"], counts["LOCAL"]), compiled.metadata.shared


def chosen(words: list[str]) -> dict[str, tuple[str, ...]]:
    """Read the values of each axis from command-line arguments; exit with an error for an unknown one."""
    choices = dict(CHOICES)
    for word in words:
        key, _, values = word.partition("=")
        wrong = [value for value in values.split(",") if value not in CHOICES.get(key, ())]
        if wrong:
            valid = " ".join(f"{key}={','.join(values)}" for key, values in CHOICES.items())
            sys.exit(f"lra: {word}: no such choice; there are {valid}")
        choices[key] = tuple(values.split(","))
    return choices


def main() -> None:
    choices = chosen(sys.argv[1:])
    if interpreted():
        sys.exit("lra: TRITON_INTERPRET=1 interprets kernels; unset it to compile them")
    print(*(f"{name:>{width(name)}}" for name in COLUMNS), flush=True)
    kernels = choices.pop("kernel")
    with ProcessPoolExecutor() as pool:
        points = itertools.product(*choices.values())
        axes = zip(*points, strict=True)
        for launches in pool.map(partial(compile_launches, kernels=kernels), *axes):
            for row in launches:
                cells = [f"{value:>{width(name)}}" for name, value in zip(COLUMNS, row, strict=True)]
                print(*cells, flush=True)


def width(name: str) -> int:
    return 16 if name == "kernel" else max(6, len(name))


if __name__ == "__main__":
    main()
