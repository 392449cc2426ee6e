"""Random numbers by counter, for compiled code: SplitMix64 (Steele, Lea & Flood 2014)."""

import numpy as np

from lra.compiled import compiled, inlined

# Increment from one state to the next; the words of a stream are mix(state).
STEP = np.uint64(0x9E3779B97F4A7C15)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


@compiled
def mix(word):
    """The output function of SplitMix64, uint64 -> uint64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compiled
def below(word, bound):
    """Return an integer in [0, bound) from the low half of a word; the bias is under bound / 2**32."""
    return np.int64(((word & LOW) * np.uint64(bound)) >> HALF)


@inlined
def next_uniform(stream):
    """Draw a number in [0, 1) and advance stream (1,) uint64."""
    stream[0] += STEP
    bits = mix(stream[0]) >> np.uint64(11)
    return bits * 2.0**-53


@inlined
def next_below(stream, bound):
    """Draw an integer in [0, bound) and advance stream (1,) uint64."""
    return int(next_uniform(stream) * bound)
