"""The files that TensorBoard reads, written whole: scalars of one step, and the hyperparameters that gave them.

Their format is small and has not changed in years, and the libraries that write it do more than is wanted here:
tensorboardX imports torch where that is installed, which takes seconds of a machine that is measuring, and hands each
event to a thread that a full disk ends. Format: TFRecord of `tensorflow.Event` in protocol buffers (`event.proto`,
`summary.proto`, `plugin_hparams.proto`). The tests read it back with tensorboardX, and where it is there with
TensorBoard.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_HPARAMS, _SUCCESS = "hparams", 1


def event_file(
    step: int, wall_s: float, scalars: Mapping[str, float], hyperparameters: Mapping[str, bool | int | float | str]
) -> bytes:
    """A whole file. `wall_s`: seconds since 1970."""
    when = _field(1, _DOUBLE, struct.pack("<d", wall_s))
    at = when + _field(2, _VARINT, _varint(step))
    events = [when + _text(3, "brain.Event:2")]
    for tag, value in scalars.items():
        shown = _text(1, tag) + _field(2, _FLOAT, struct.pack("<f", value))
        events.append(at + _message(5, _message(1, shown)))
    if hyperparameters:
        started = b"".join(_message(1, _text(1, name) + _message(2, _any(v))) for name, v in hyperparameters.items())
        ended = _field(1, _VARINT, _varint(_SUCCESS)) + _field(2, _DOUBLE, struct.pack("<d", wall_s))
        for tag, content in (("start", _message(3, started)), ("end", _message(4, ended))):
            plugin = _text(1, _HPARAMS) + _message(2, content)
            shown = _text(1, f"_hparams_/session_{tag}_info") + _message(9, _message(1, plugin))
            events.append(at + _message(5, _message(1, shown)))
    return b"".join(map(_record, events))


def _any(value: bool | int | float | str) -> bytes:
    """A `google.protobuf.Value`."""
    if isinstance(value, bool):
        return _field(4, _VARINT, _varint(int(value)))
    if isinstance(value, (int, float)):
        return _field(2, _DOUBLE, struct.pack("<d", value))
    return _text(3, value)


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())


def _message(number: int, content: bytes) -> bytes:
    return _field(number, _BYTES, _varint(len(content)) + content)


def _field(number: int, kind: int, content: bytes) -> bytes:
    return _varint(number << 3 | kind) + content


def _varint(value: int) -> bytes:
    """A whole number from 0, seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _checksum(length) + event + _checksum(event)


def _checksum(content: bytes) -> bytes:
    """Masked as TFRecord wants it."""
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(content: bytes) -> int:
    """The cyclic redundancy check of Castagnoli (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_remainder, range(256)))
