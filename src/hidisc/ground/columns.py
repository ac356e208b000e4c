"""Columns of names and numbers as a Parquet file, for the tables that later stages write; vectors beside them."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.files import replaced, write_atomic

Columns = dict[str, NDArray[Any]]
"""Equally long arrays by name: numbers, or objects that are strings or None."""
_VECTORS = "features"
_VECTOR_NAMES = (_VECTORS, "feats", "embeddings", "embedding")
"""Columns of lists that are read as vectors."""


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
    return {
        name: np.array(column.to_pylist(), object) if pa.types.is_dictionary(column.type) else column.to_numpy()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


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


class VectorColumns:
    """A Parquet file of N rows with a vector and further columns each, as `stream_vectors` writes it.

    The vectors are a column of lists, or columns of numbers that are numbered: `feature_0`, `feature_1`. Memory of
    `read`: the groups of rows that the file is divided into and that are needed.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, Lock()
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{path} is no Parquet file, or damaged ({error}). Write or copy it again.") from error
        schema = self._file.schema_arrow
        lists = [field.name for field in schema if field.name in _VECTOR_NAMES and _is_list(field.type)]
        numbered = [match for field in schema if (match := re.fullmatch(r"(\D*)(\d+)", field.name))]
        self._names = lists[:1] or [match[0] for match in sorted(numbered, key=lambda match: int(match[2]))]
        if not self._names or (len({match[1] for match in numbered}) > 1 and not lists):
            raise UserError(
                f"{path} has no column of vectors ({', '.join(_VECTOR_NAMES)}: lists of numbers), and no numbered "
                f"columns (feature_0, feature_1) either. Its columns are {', '.join(schema.names)}."
            )
        kind = schema.field(self._names[0]).type
        self.dtype = np.dtype((kind.value_type if lists else kind).to_pandas_dtype())
        groups = self._file.metadata
        self._starts = np.cumsum([0, *(groups.row_group(n).num_rows for n in range(groups.num_row_groups))])
        self.dim = len(self._names) if not lists else self._read_groups(0, 1).shape[1] if groups.num_rows else 0
        others = [name for name in schema.names if name not in self._names]
        table = self._file.read(columns=others)
        self.columns: Columns = {name: _as_names(table.column(name)) for name in others}

    def read(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n, D) the vectors of some rows (n,)."""
        first, last = np.searchsorted(self._starts, [rows.min(), rows.max()], side="right") - 1
        return self._read_groups(int(first), int(last) + 1)[rows - self._starts[first]]

    def _read_groups(self, first: int, stop: int) -> NDArray[Any]:
        with self._lock:
            table = self._file.read_row_groups(range(first, stop), columns=self._names)
        if len(self._names) > 1 or not _is_list(table.column(0).type):
            return np.stack([table.column(name).to_numpy() for name in self._names], axis=1)
        column = table.column(0).combine_chunks()
        column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        values = column.flatten().to_numpy(zero_copy_only=False)
        if len(values) % max(len(column), 1) or len(set(pc.list_value_length(column).to_pylist())) > 1:
            raise UserError(
                f"{self._path}: the vectors in {self._names[0]!r} are not all of one length. Write it again."
            )
        return np.asarray(values.reshape(len(column), -1))


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _as_names(column: pa.ChunkedArray) -> NDArray[Any]:
    """Numbers as they are, missing ones as NaN; anything else as names or None."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy())
    return np.array([None if value is None else str(value) for value in column.to_pylist()], object)
