"""What a prompt file holds, whatever its format, and the checks both formats share."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sweep.errors import DatasetError

_HEAD_BYTES = 512
# Longest first: the mark of UTF-32 little endian begins with that of UTF-16.
_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_ARCHIVES = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"(\xb5/\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One prompt and what it is worth in output: the stored reply (ShareGPT) or a number of tokens (custom).

    `row` counts from 0 in the file.
    """

    row: int
    prompt: str
    reply: str | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Conversations:
    """A prompt file that was read in full and found sound.

    `rows` counts what stands in it, `exchanges` holds the first prompt and reply of each row with at least two turns,
    `too_few_turns` counts the others. `salvaged_at` is the character where a truncated file ends, None for a whole one.
    `ignored_keys` are keys of a custom file that nothing reads. `sha256` is of the file's bytes.
    """

    path: Path
    sha256: str
    rows: int
    exchanges: tuple[Exchange, ...]
    too_few_turns: int = 0
    salvaged_at: int | None = None
    ignored_keys: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line for the user: how many rows, how many with two turns, and whether the file was cut."""
        text = f"{self.path}: {self.rows:,} rows"
        if self.too_few_turns:
            text += f", {self.too_few_turns:,} of them with fewer than two turns"
        if self.salvaged_at is not None:
            text += f"; the file is truncated at character {self.salvaged_at:,}, its whole conversations were salvaged"
        if self.ignored_keys:
            text += f"; not read: {', '.join(self.ignored_keys)}"
        return text


@contextmanager
def open_prompt_file(path: Path) -> Iterator[BinaryIO]:
    """`path` open for reading, after a look at its first bytes.

    Raises DatasetError, also for a failure while reading: absent, not a file, not readable, empty, and everything that
    is plainly something else (UTF-16, a byte order mark, a web page, an archive, a Git LFS pointer).
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            _refuse_foreign(head, path)
            file.seek(0)
            yield file
    except FileNotFoundError:
        raise DatasetError("there is no such prompt file; check load.path", path=path) from None
    except IsADirectoryError:
        raise DatasetError("is a folder; load.path must name the prompt file in it", path=path) from None
    except OSError as error:
        why = "reading is not allowed" if error.errno == errno.EACCES else str(error.strerror or error)
        raise DatasetError(f"cannot be read: {why}", path=path) from None


def _refuse_foreign(head: bytes, path: Path) -> None:
    convert = "convert it: iconv -f {0} -t UTF-8 FILE > NEW-FILE"
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            raise DatasetError(f"is {encoding}, not UTF-8; {convert.format(encoding)}", path=path, position=0)
    if head.startswith(b"\xef\xbb\xbf"):
        mend = "remove it: tail -c +4 FILE > NEW-FILE"
        raise DatasetError(
            f"begins with a byte order mark, which the load client refuses; {mend}", path=path, position=0
        )
    for magic, kind in _ARCHIVES.items():
        if head.startswith(magic):
            raise DatasetError(f"is a {kind} file, not JSON text; unpack or export it first", path=path, position=0)
    if b"\x00" in head[:4]:
        encoding = "UTF-16LE" if head[:1] != b"\x00" else "UTF-16BE"
        raise DatasetError(f"looks like UTF-16, not UTF-8; {convert.format(encoding)}", path=path, position=0)
    text = head.lstrip()
    if not text:
        raise DatasetError("the file is empty; download it again", path=path)
    if text.startswith(b"<"):
        mend = "download the file itself (the `resolve` address of a hub, not its page)"
        raise DatasetError(f"is a web page, not data; {mend}", path=path, position=0)
    if text.startswith(b"version https://git-lfs"):
        raise DatasetError("is a Git LFS pointer, not the data; run `git lfs pull`", path=path, position=0)


def kind_of(value: object) -> str:
    """The JSON word for a Python value, with its article: "a string", "null", ..."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {str: "a string", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
