"""Uniform numbers that depend on nothing but a seed and a count: they survive restarts and rewinds."""

import secrets

_MASK = (1 << 64) - 1
_RANDOM_SEED = 0xFFFFFFFF


def resolve_seed(seed: int) -> int:
    """The 32-bit seed in force; -1 (which is 4294967295) draws one."""
    seed &= 0xFFFFFFFF
    while seed == _RANDOM_SEED:
        seed = secrets.randbits(32)
    return seed


def uniform(seed: int, count: int) -> float:
    """The `count`-th number of `seed`, in [0, 1) with 53 random bits.

    SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): the finaliser over
    a Weyl sequence, whose start the finaliser has already spread, so that neighbouring seeds are unrelated.
    """
    return (_mix(_mix(seed + 0x9E3779B97F4A7C15) + (count + 1) * 0x9E3779B97F4A7C15) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z &= _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
