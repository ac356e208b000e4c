"""Damage to bytes, as disks, half copies and editors do it; what was done is said in words."""

from collections.abc import Callable

import numpy as np

Rng = np.random.Generator


def mutate(data: bytes, rng: Rng, *, most: int = 3) -> tuple[bytes, str]:
    """(other bytes, what was done): one to `most` changes, often near the beginning."""
    done = []
    for _ in range(int(rng.integers(1, most + 1))):
        change = CHANGES[int(rng.integers(len(CHANGES)))]
        data = change(data, rng)
        done.append(change.__name__)
    return data, ", ".join(done)


def place(length: int, rng: Rng) -> int:
    """Somewhere in so many bytes; half of the time where headers are."""
    if length <= 1:
        return 0
    return int(rng.integers(min(length, 1024))) if rng.random() < 0.5 else int(rng.integers(length))


def span(length: int, rng: Rng) -> tuple[int, int]:
    """A range, of any order of magnitude."""
    begin = place(length, rng)
    return begin, min(length, begin + int(2 ** rng.uniform(0, np.log2(length + 2))))


def flip_bit(data: bytes, rng: Rng) -> bytes:
    """Change one bit."""
    if not data:
        return b"\x01"
    at = place(len(data), rng)
    return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]


def set_byte(data: bytes, rng: Rng) -> bytes:
    """Set one byte to an extreme or random value."""
    at = place(len(data), rng)
    value = (0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x22, int(rng.integers(256)))[int(rng.integers(8))]
    return data[:at] + bytes([value]) + data[at + 1 :]


def scramble(data: bytes, rng: Rng) -> bytes:
    """Random bytes over a range."""
    begin, end = span(len(data), rng)
    return data[:begin] + rng.bytes(end - begin) + data[end:]


def zero(data: bytes, rng: Rng) -> bytes:
    """Zeros over a range, as a half copied file has."""
    begin, end = span(len(data), rng)
    return data[:begin] + bytes(end - begin) + data[end:]


def truncate(data: bytes, rng: Rng) -> bytes:
    """Cut the end off."""
    return data[: int(rng.integers(len(data) + 1))]


def remove(data: bytes, rng: Rng) -> bytes:
    """Take a range out."""
    begin, end = span(len(data), rng)
    return data[:begin] + data[end:]


def repeat(data: bytes, rng: Rng) -> bytes:
    """Write a range twice."""
    begin, end = span(len(data), rng)
    return data[:end] + data[begin:end] + data[end:]


def insert(data: bytes, rng: Rng) -> bytes:
    """Put some random bytes in."""
    at = place(len(data), rng)
    return data[:at] + rng.bytes(int(rng.integers(1, 9))) + data[at:]


def append(data: bytes, rng: Rng) -> bytes:
    """Put some random bytes behind."""
    return data + rng.bytes(int(rng.integers(1, 65)))


CHANGES: tuple[Callable[[bytes, Rng], bytes], ...] = (
    flip_bit, flip_bit, set_byte, set_byte, scramble, zero, truncate, remove, repeat, insert, append,
)  # fmt: skip
