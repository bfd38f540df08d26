"""The frame codec, slowly: one struct, one table, no cleverness.

Layout, little-endian: magic, wire version, kind, codec, dtype, flags, replica, incarnation,
fragment, seq, version, length, aux, count, CRC-32C of the payload; then CRC-32C of the 60 bytes.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator

LAYOUT = struct.Struct("<4sBBBBIIIIQQQIII")
MAGIC, WIRE_VERSION, POLYNOMIAL = b"PDP1", 1, 0x82F63B78
KINDS, FLAGS, ELEMENTS = range(1, 15), {3: 1, 12: 1, 14: 1}, (2, 6, 13)


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


TABLE = [_entry(byte) for byte in range(256)]


def crc32c(data: bytes, value: int = 0) -> int:
    """CRC-32C of data, continuing from value."""
    value ^= 0xFFFFFFFF
    for byte in data:
        value = TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Frame:
    """The fields that mean something, and the payload."""

    kind: int
    flags: int = 0
    codec: int = 0
    dtype: int = 0
    replica: int = 0
    incarnation: int = 0
    fragment: int = 0
    seq: int = 0
    version: int = 0
    aux: int = 0
    count: int = 0
    payload: bytes = b""

    def encode(self) -> bytes:
        """Header and payload."""
        first = (MAGIC, WIRE_VERSION, self.kind, self.codec, self.dtype, self.flags, self.replica)
        then = (self.incarnation, self.fragment, self.seq, self.version, len(self.payload))
        head = LAYOUT.pack(*first, *then, self.aux, self.count, crc32c(self.payload))
        return head + struct.pack("<I", crc32c(head)) + self.payload


def decode(data: bytes) -> Iterator[Frame]:
    """Whole frames, in order. Raises ValueError for anything else."""
    while data:
        if len(data) < 64 or crc32c(data[:60]) != struct.unpack("<I", data[60:64])[0]:
            raise ValueError("header")
        magic, wire, kind, codec, dtype, flags, replica, incarnation, *rest = LAYOUT.unpack(
            data[:60]
        )
        fragment, seq, version, length, aux, count, crc = rest
        payload, data = data[64 : 64 + length], data[64 + length :]
        if magic != MAGIC or wire != WIRE_VERSION or kind not in KINDS:
            raise ValueError("magic, version or kind")
        if flags & ~FLAGS.get(kind, 0) or (kind not in ELEMENTS and (codec or dtype)):
            raise ValueError("flags, codec or dtype")
        if len(payload) != length or crc32c(payload) != crc:
            raise ValueError("payload")
        yield Frame(
            kind, flags, codec, dtype, replica, incarnation, fragment, seq, version, aux, count,
            payload,
        )  # fmt: skip
