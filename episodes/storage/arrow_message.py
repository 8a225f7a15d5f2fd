"""Validation of the header of an Arrow record batch in a file, before Arrow allocates memory for the batch.

    0xFFFFFFFF | size of the header | header (a flatbuffer) | body

A flatbuffer's table has an offset. Its vtable stores where each field of the table is, or 0.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from episodes.errors import UnreadableData

if TYPE_CHECKING:
    import pyarrow as pa

_GOES_ON = 0xFFFFFFFF
_RECORD_BATCH = 3  # of the union of headers
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3  # fields of a Message
_COMPRESSION = 3  # of a RecordBatch


def check_message(data: pa.Buffer, at: int) -> bool:
    """Validate the header of the Arrow record batch at byte `at` of a file.
    Return False at the end of the file's stream of batches.

    Raises:
        UnreadableData: something else is stored there, the batch is longer than the file, or its body is compressed:
            that could claim any amount of memory, and no shard has it.
    """
    data = memoryview(data).cast("B")
    try:
        goes_on, size = struct.unpack_from("<Ii", data, at)
        if goes_on == _GOES_ON and not size:
            return False
        if goes_on != _GOES_ON or not 0 < size <= len(data) - at - 8:
            raise UnreadableData(f"no record batch at byte {at}")
        message = at + 8 + struct.unpack_from("<I", data, at + 8)[0]
        kind = _field(data, message, _HEADER_TYPE)
        header = _field(data, message, _HEADER)
        body = _field(data, message, _BODY_LENGTH)
        if kind is None or header is None or data[kind] != _RECORD_BATCH:
            raise UnreadableData(f"no record batch at byte {at}")
        length = 0 if body is None else struct.unpack_from("<q", data, body)[0]
        if not 0 <= length <= len(data) - at - 8 - size:
            raise UnreadableData(f"the record batch at byte {at} has {length} bytes, more than there are")
        if _field(data, header + struct.unpack_from("<I", data, header)[0], _COMPRESSION) is not None:
            raise UnreadableData(f"the record batch at byte {at} is compressed as no shard is")
    except (struct.error, IndexError, OverflowError) as error:
        raise UnreadableData(f"no record batch at byte {at}: {error}") from None
    return True


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Return the byte position of field `number` of a table in a flatbuffer (the format of Arrow's headers),
    or None if it is missing.

    Raises:
        UnreadableData: `table` is not the position of a table.
    """
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if not 0 <= vtable < len(data):
        raise UnreadableData(f"no table at byte {table}")
    place = 4 + 2 * number
    if struct.unpack_from("<H", data, vtable)[0] <= place:
        return None
    offset = struct.unpack_from("<H", data, vtable + place)[0]
    return table + offset if offset else None
