"""A JSON list read one element at a time, with the character position of whatever is wrong in it."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from pathlib import Path
from typing import BinaryIO

from sweep.errors import DatasetError

_CHUNK_BYTES = 1 << 20
_OPEN_STRING = "Unterminated string"
_SPACE = " \t\n\r"
# A value cut off by the end of the buffer fails this close to it at the latest (`\\ud83d\\ude00` is the longest token).
_NEAR_END = 16
# What is left of a value after the error when the file itself ends: nothing, or part of a word, number or escape.
_CUT_TOKEN = re.compile(r",?\s*[\w\\+.-]*\s*")


class CutOff(Exception):
    """The text ends inside a value or before the list is closed. `position`: its length in characters."""

    def __init__(self, position: int) -> None:
        self.position = position
        super().__init__(f"the text ends at character {position}")


class JsonStream:
    """Characters and JSON values of a UTF-8 file, in order. Memory: one value and a megabyte.

    `sha256` is the digest of the bytes read so far: of the whole file once `peek` has answered "".
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder()
        self._digest = hashlib.sha256()
        self._buffer, self._at, self._before, self._ended = "", 0, 0, False

    @property
    def position(self) -> int:
        """Characters before the next one."""
        return self._before + self._at

    @property
    def sha256(self) -> str:
        """Digest of the bytes read so far."""
        return self._digest.hexdigest()

    def peek(self) -> str:
        """The next character that is not white space, "" at the end; it stays the next one."""
        while True:
            while self._at < len(self._buffer):
                if self._buffer[self._at] not in _SPACE:
                    return self._buffer[self._at]
                self._at += 1
            if not self._more():
                return ""

    def skip(self) -> None:
        """Step over the character that `peek` answered."""
        self._at += 1

    def value(self) -> object:
        """The JSON value that starts at the next character. Raises CutOff, or DatasetError where it is not JSON."""
        self.peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                if self._may_go_on(error) and self._more():
                    continue
                if not self._is_cut(error):
                    self._refuse(error.msg, error.pos)
                raise CutOff(self._before + len(self._buffer)) from None
            except ValueError as error:  # an integer of thousands of digits
                self._refuse(str(error).split(";")[0], self._at)
            except RecursionError:
                self._refuse("lists or objects are nested too deeply", self._at)
            else:
                # A number that ends with the buffer may go on in the next piece.
                if end < len(self._buffer) or not self._more():
                    self._at = end
                    return value

    def to_end(self) -> None:
        """Read what is left, so that `sha256` covers the file."""
        while self._more():
            self._at = len(self._buffer)

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        return error.msg.startswith(_OPEN_STRING) or error.pos >= len(self._buffer) - _NEAR_END

    def _is_cut(self, error: json.JSONDecodeError) -> bool:
        open_string = error.msg.startswith(_OPEN_STRING)
        return self._ended and (open_string or _CUT_TOKEN.fullmatch(self._buffer, error.pos) is not None)

    def _refuse(self, reason: str, index: int) -> None:
        raise DatasetError(
            f"is not valid JSON here ({reason[:1].lower()}{reason[1:]}); download the file again or mend it there",
            path=self._path,
            position=self._before + index,
        ) from None

    def _more(self) -> bool:
        """Add the next piece of the file to the buffer; False at its end."""
        if self._ended:
            return False
        # As much again as is waiting: an element of any size is then parsed a few times, not once a megabyte.
        piece = self._file.read(max(_CHUNK_BYTES, len(self._buffer) - self._at))
        self._digest.update(piece)
        if not piece:
            self._ended = True
            return False
        try:
            text = self._utf8.decode(piece)
        except UnicodeDecodeError as error:
            good = self._before + len(self._buffer) + len(error.object[: error.start].decode("utf-8"))
            raise DatasetError(
                f"is not UTF-8 here ({error.reason}, byte 0x{error.object[error.start]:02x}); "
                "convert the file: iconv -f ITS-ENCODING -t UTF-8 FILE > NEW.json",
                path=self._path,
                position=good,
            ) from None
        self._before += self._at
        self._buffer, self._at = self._buffer[self._at :] + text, 0
        return True
