"""Columns of names and numbers as a Parquet file, for the tables that later stages write; vectors beside them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.files import replaced, write_atomic

Columns = dict[str, NDArray[Any]]
"""Equally long arrays by name: numbers, or objects that are strings or None."""
_VECTORS = "features"


def save_columns(path: Path, columns: Mapping[str, NDArray[Any]], notes: Mapping[str, str] | None = None) -> None:
    """Write columns, and notes in the file's own metadata; strings are dictionary-encoded.

    The same values give the same bytes.
    """
    arrays = {
        name: pa.array(values.tolist(), pa.string()).dictionary_encode() if values.dtype == object else pa.array(values)
        for name, values in columns.items()
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays).replace_schema_metadata(notes), sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def load_columns(path: Path) -> Columns:
    """Read the columns that `save_columns` wrote."""
    table = _read(pq.read_table, path)
    return {name: _decode(table.column(name)) for name in table.column_names}


def load_notes(path: Path) -> dict[str, str]:
    """The notes in the file's metadata."""
    notes = _read(pq.read_schema, path).metadata or {}
    return {key.decode(): text.decode() for key, text in notes.items()}


def _read(read: Callable[[Path], Any], path: Path) -> Any:
    try:
        return read(path)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing. Run the command that makes its folder again.") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path} is damaged ({error}). Run the command that makes its folder again.") from error


def stream_vectors(path: Path, table: Path, vectors: NDArray[Any], block_rows: int) -> None:
    """Write a table of N patches and, as its last column `features`, vectors (N, D) as lists of D float32.

    A block at a time: memory does not grow with N. A column of the table that is called so already is renamed.
    """
    source = pq.ParquetFile(table, memory_map=True)
    known = source.schema_arrow
    names = ["features (table)" if name == _VECTORS else name for name in known.names]
    kind = pa.list_(pa.float32(), vectors.shape[1])
    schema = pa.schema([*(field.with_name(name) for field, name in zip(known, names, strict=True)), (_VECTORS, kind)])
    with replaced(path) as part, pq.ParquetWriter(part, schema, compression="zstd", use_dictionary=names) as writer:
        start = 0
        for batch in source.iter_batches(block_rows):
            block = np.ascontiguousarray(vectors[start : start + len(batch)], np.float32)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), vectors.shape[1])
            writer.write_batch(pa.record_batch([*batch.columns, lists], schema=schema))
            start += len(batch)


def _decode(column: pa.ChunkedArray) -> NDArray[Any]:
    if pa.types.is_dictionary(column.type):
        return np.array(column.to_pylist(), object)
    values: NDArray[Any] = column.to_numpy()
    return values
