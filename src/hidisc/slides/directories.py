"""The chain of page directories of a TIFF, followed here before a library follows it for ever."""

import os
import struct
from pathlib import Path

from hidisc.slides.slide import SlideError


def refuse_circle(path: Path) -> None:
    """Raise where the directories of a TIFF lead back to one of themselves; other files and damage are left alone."""
    try:
        with path.open("rb") as file:
            head = file.read(16)
            order = {b"II": "<", b"MM": ">"}[head[:2]]
            big = head[2:4] == struct.pack(f"{order}H", 43)
            # NDPI has offsets of 8 bytes in an otherwise classic TIFF
            length, entry_bytes, offset = (
                ("Q", 20, "Q") if big else ("H", 12, "Q" if path.suffix.lower() == ".ndpi" else "I")
            )
            (directory,) = struct.unpack_from(order + offset, head, 8 if big else 4)
            seen: set[int] = set()
            while directory:
                if directory in seen:
                    raise SlideError("the page directories of the TIFF lead in a circle. Copy it again.")
                seen.add(directory)
                file.seek(directory)
                (entries,) = struct.unpack(order + length, file.read(struct.calcsize(order + length)))
                file.seek(entries * entry_bytes, os.SEEK_CUR)
                (directory,) = struct.unpack(order + offset, file.read(struct.calcsize(order + offset)))
    except (KeyError, struct.error, OSError, ValueError, OverflowError):
        return  # no TIFF, or one that ends too early
