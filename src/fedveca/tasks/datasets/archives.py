"""Packed bytes of unknown honesty: taken out by name, up to a size, and never written anywhere."""

import gzip
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from typing import BinaryIO, Protocol

from fedveca.errors import UserError


class DataError(UserError):
    """Data cannot be had, or cannot be trusted; the text is for the user."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


BROKEN = (  # what the standard library says of archives that are none; MemoryError where a pax header asks for it
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    EOFError,
    LookupError,
    RuntimeError,
    ValueError,
    OverflowError,
    AttributeError,
    MemoryError,
)


def read_bounded(stream: Readable, limit: int, where: object) -> bytes:
    """All that a stream holds, which may not be more than `limit` bytes."""
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise DataError(f"{where}: holds more than the {limit:,} bytes expected")
    return data


def read_gzip(data: BinaryIO, limit: int, where: object) -> bytes:
    """The content of a gzip stream of at most `limit` bytes."""
    try:
        return read_bounded(gzip.GzipFile(fileobj=data), limit, where)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{where}: broken gzip file ({error})") from None


class _Capped:
    """A stream that gives at most `limit` bytes: no archive unpacks without end."""

    def __init__(self, stream: Readable, limit: int, where: object) -> None:
        self.stream, self.left, self.where = stream, limit, where

    def read(self, size: int, /) -> bytes:
        data = self.stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise DataError(f"{self.where}: unpacks to far more than expected")
        return data


def read_members(tar: Readable, sizes: Mapping[str, int], where: object) -> dict[str, bytes]:
    """The regular members of a tar stream with exactly these names, each at most as large as said."""
    found: dict[str, bytes] = {}
    try:
        capped = _Capped(tar, 2 * sum(sizes.values()) + (1 << 24), where)
        with tarfile.open(fileobj=capped, mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                if member.name not in sizes or not member.isreg():
                    continue
                if member.size > sizes[member.name]:
                    raise DataError(f"{where}: {member.name} is larger than {sizes[member.name]:,} bytes")
                found[member.name] = archive.extractfile(member).read()
                if len(found) == len(sizes):
                    return found
    except DataError:
        raise
    except BROKEN as error:
        raise DataError(f"{where}: broken archive ({quote_error(error)})") from None
    raise DataError(f"{where}: lacks {', '.join(sorted(sizes.keys() - found.keys()))}")


def read_tgz(stream: BinaryIO, sizes: Mapping[str, int], where: object) -> dict[str, bytes]:
    """`members` of a gzipped tar, by bare file name."""
    found = read_members(gzip.GzipFile(fileobj=stream), sizes, where)
    return {name.rpartition("/")[2]: data for name, data in found.items()}


def quote_error(error: BaseException) -> str:
    """A library's words, as part of one sentence."""
    said = " ".join(str(error).split())[:200] or type(error).__name__
    return "".join(c if c.isprintable() else "?" for c in said)
