"""Whether a JPEG is whole, which its decoder does not say: it makes grey or noise of what is missing."""

import re
from mmap import ACCESS_READ, mmap
from pathlib import Path

from hidisc.slides.slide import SlideError

_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""The next marker, behind compressed pixels as well: in them FF is followed by 00 or is a restart."""
_TABLES, _SCAN, _END = 0xC4, 0xDA, 0xD9
_SEQUENTIAL = (0xC0, 0xC1)
_WITHOUT_LENGTH = (0x01, 0xD8)
_HOLE = bytes(512)


def check_jpeg(path: Path) -> None:
    """Raise where the pixels of a JPEG do not come to their end, or have a hole of zeros as half copied files have."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        at, sequential = 0, False
        zeros: dict[int, int] = {}  # what a code of nothing but zeros means in each Huffman table
        while marker := _MARKER.search(data, at):
            code, at = marker[0][1], marker.end()
            if code == _END:
                return
            if code in _WITHOUT_LENGTH:
                continue
            segment = data[at + 2 : at + int.from_bytes(data[at : at + 2])]
            at += 2 + len(segment)
            sequential |= code in _SEQUENTIAL
            if code == _TABLES:
                zeros |= _read_tables(segment)
            elif code == _SCAN and segment and sequential and not _may_be_zeros(segment, zeros):
                following = _MARKER.search(data, at)
                if data.find(_HOLE, at, following.start() if following else len(data)) >= 0:
                    raise SlideError("the JPEG has a hole: zeros stand where pixels should. Copy it again.")
    raise SlideError("the JPEG is cut short: its pixels do not come to their end. Copy it again.")


def _read_tables(segment: bytes) -> dict[int, int]:
    """The first symbol of each Huffman table of a segment; its code is all zeros."""
    symbols = {}
    while len(segment) > 17:
        symbols[segment[0]] = segment[17]
        segment = segment[17 + sum(segment[1:17]) :]
    return symbols


def _may_be_zeros(scan: bytes, zeros: dict[int, int]) -> bool:
    """Whether zeros are what one even colour is coded as in this scan: no change, and nothing else in the block."""
    selectors = scan[2 : 1 + 2 * scan[0] : 2]  # a byte per component: its tables of first and of further values
    return all(zeros.get(byte >> 4) == zeros.get(0x10 | byte & 0x0F) == 0 for byte in selectors)
