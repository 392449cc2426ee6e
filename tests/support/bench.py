"""Synthetic benchmark records with known numbers."""

import dataclasses

from lra.results.bench_record import BenchRecord, BenchRow, Machine

MB = 2**20
SOFTWARE = {"python": "3.11", "torch": "2.13", "triton": None, "allocator": {"MALLOC_MMAP_MAX_": "0"}}
RATES = {"copy": 1e10, "matmul": {"fp32": 1e12}}
MACHINE = Machine(hardware="A machine", device="cpu", threads=2, load=0.5, **SOFTWARE, **RATES)


def row(mechanism, n, ms, **changes):
    """A benchmark row with samples ms / 2, ms and 2 ms, n MB of memory, and throughputs of 1 GB/s and 2 TFLOP/s."""
    fields = {} if ms is None else {"samples": (ms / 2, ms, 2 * ms), "peak_bytes": n * MB, "roofline_ms": ms / 4}
    fields |= {} if ms is None else {"roofline_bytes": int(ms * 1e6), "flops": int(ms * 2e9)}
    base = dict.fromkeys([field.name for field in dataclasses.fields(BenchRow)])
    base |= {"what": "attention", "mode": "training", "mechanism": mechanism, "n": n, "dtype": "fp32", "status": "ok"}
    base |= {"batch": 4, "heads": 2, "head_dim": 32, "samples": (), "calls": 1, "claimed": 1.0}
    return BenchRow(**base | fields | changes)


def made(rows, **changes):
    fields = {"name": "bench", "fingerprint": "0123456789ab", "git": "abc", "choices": {"reference": "naive"}}
    base = BenchRecord(**fields, machine=MACHINE, seconds=1.0, rows=rows)
    return dataclasses.replace(base, **changes)
