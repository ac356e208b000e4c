"""Columns of names and numbers as a Parquet file, for the tables that later stages write."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hidisc.errors import UserError
from hidisc.runs import write_atomic

Columns = dict[str, NDArray[Any]]
"""Equally long arrays by name: numbers, or objects that are strings or None."""


def save_columns(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write columns; strings are dictionary-encoded. The same values give the same bytes."""
    arrays = {name: _encode(values) for name, values in columns.items()}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def load_columns(path: Path) -> Columns:
    """Read them back."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing. Run the command that makes its folder again.") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path} is damaged ({error}). Run the command that makes its folder again.") from error
    return {name: _decode(table.column(name)) for name in table.column_names}


def _encode(values: NDArray[Any]) -> pa.Array:
    if values.dtype != object:
        return pa.array(values)
    return pa.array(values.tolist(), pa.string()).dictionary_encode()


def _decode(column: pa.ChunkedArray) -> NDArray[Any]:
    if pa.types.is_dictionary(column.type):
        return np.array(column.to_pylist(), object)
    found: NDArray[Any] = column.to_numpy()
    return found
