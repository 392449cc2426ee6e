"""Benchmarks: time, peak memory and rounding error of mechanisms."""
