"""One row per patch: whose it is, where it was cut, its scores and where its pixels lie."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath

_NAME = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        ("patient", _NAME),
        ("slide", _NAME),
        ("patch", pa.int32()),  # its number within its slide
        ("x", pa.int32()),  # level-0 px of the upper left corner; null for imported patches
        ("y", pa.int32()),
        ("mpp", pa.float32()),  # micrometres per patch px
        ("label", _NAME),
        ("site", _NAME),
        ("split", _NAME),
        ("tissue_fraction", pa.float32()),
        ("pixel_std", pa.float32()),
        ("is_blank", pa.bool_()),
        ("shard", pa.int32()),  # index into the store's list of shards; null when not stored
        ("row", pa.int32()),
    ]
)
"""Columns of every patch table; there may be more behind (`place` where there are several scales, `name` of imported
patches, columns of the user's own)."""
_ROW_GROUP = 2**20
SAME_SCALE = 1e-3
"""Share by which two scales may differ and be the same: tables have 32-bit numbers."""


class PatchTable:
    """A table of N patches, the patches of a slide next to each other; names are dictionary-encoded.

    A loaded table reads each column when it is first asked for: 4 bytes per patch and column in memory. The file stays
    open, so that a store written anew meanwhile does not mix with the one being read.
    """

    def __init__(self, arrow: pa.Table) -> None:
        self._schema: pa.Schema = arrow.schema
        self._rows: int = arrow.num_rows
        self._read = dict(zip(arrow.column_names, arrow.columns, strict=True))
        self._file: pq.ParquetFile | None = None

    @classmethod
    def load(cls, path: AnyPath) -> "PatchTable":
        """Open a table."""
        path = Path(path)
        names = [field.name for field in pq.read_schema(path) if pa.types.is_dictionary(field.type)]
        file = pq.ParquetFile(path, read_dictionary=names, memory_map=True, pre_buffer=False)
        table = cls(file.schema_arrow.empty_table())
        table._rows, table._read, table._file = file.metadata.num_rows, {}, file
        return table

    def save(self, path: Path) -> None:
        """Write as Parquet; the same rows give the same bytes."""
        pq.write_table(self.arrow, path, compression="zstd", use_dictionary=self.names, row_group_size=_ROW_GROUP)

    def __len__(self) -> int:
        return self._rows

    @property
    def columns(self) -> list[str]:
        """Column names."""
        return list(self._schema.names)

    @property
    def names(self) -> list[str]:
        """Columns that hold names, for which there are `codes`."""
        return [field.name for field in self._schema if pa.types.is_dictionary(field.type)]

    @property
    def arrow(self) -> pa.Table:
        """All of it as an Arrow table."""
        return pa.table([self._column(name) for name in self.columns], schema=self._schema)

    def _column(self, name: str) -> pa.ChunkedArray:
        if name not in self._read:
            if self._file is None or name not in self._schema.names:
                raise KeyError(f"column {name!r} is none of {', '.join(self.columns)}")
            self._read[name] = self._file.read(columns=[name]).unify_dictionaries().column(0)
        return self._read[name]

    def column(self, name: str) -> NDArray[Any]:
        """(N,) values: numbers as they are (missing integers as -1), names as Python strings or None."""
        values = self._column(name)
        if pa.types.is_integer(values.type) and values.null_count:
            values = values.fill_null(-1)
        if pa.types.is_dictionary(values.type):
            codes, names = self.codes(name)
            return np.array([*names, None], object)[codes]
        return np.asarray(values.to_numpy())

    def codes(self, name: str) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """(N,) integer codes of a name column, -1 where missing, and the names they stand for."""
        values = self._column(name).combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], _NAME)
        indices = values.indices
        codes = (indices.fill_null(-1) if indices.null_count else indices).to_numpy()
        return codes, tuple(values.dictionary.to_pylist())

    def rows_by(self, name: str) -> dict[str, NDArray[np.int64]]:
        """Rows of every name of a column, rising, in the order in which the names first appear.

        Rows without a name are left out, and so are names without a row.
        """
        codes, names = self.codes(name)
        order = np.argsort(codes, kind="stable")
        present, starts = np.unique(codes[order], return_index=True)
        groups = zip(present, np.split(order, starts[1:]), strict=False)  # of no rows NumPy makes one group
        named = [(names[code], rows) for code, rows in groups if code >= 0]
        return dict(sorted(named, key=lambda group: group[1][0]))

    def scales(self) -> NDArray[np.float64]:
        """Micrometres per patch px of all scales that there are, the finest first; empty: not known."""
        mpp = np.unique(self.column("mpp"))
        return mpp[~np.isnan(mpp)].astype(np.float64).round(4)

    def at_scales(self, scales: Sequence[float], setting: str, where: Path) -> NDArray[np.bool_]:
        """(N,) which rows are of some scales; refuses an unknown scale, under the name of the `setting`."""
        present = self.scales()
        unknown = [scale for scale in scales if not np.isclose(present, scale, rtol=SAME_SCALE).any()]
        if unknown:
            known = ", ".join(f"{scale:g}" for scale in present) or "no known scale"
            raise UserError(f"{setting}: {where} has no patches of {unknown[0]:g} um/px. It has {known}.")
        mpp = self.column("mpp")[:, None]
        return np.isclose(mpp, scales, rtol=SAME_SCALE).any(axis=1)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have patches."""
        codes, names = self.codes("split")
        return tuple(names[code] for code in np.unique(codes[codes >= 0]))

    def in_splits(self, splits: Sequence[str], setting: str, where: Path) -> NDArray[np.bool_]:
        """(N,) which rows are in some splits; refuses an unknown split, under the name of the `setting`."""
        codes, names = self.codes("split")
        present = self.splits
        unknown = [split for split in splits if split not in present]
        if unknown:
            raise UserError(
                f"{setting}: {unknown[0]!r} is not a split of {where}, which has {', '.join(present) or 'none'}. "
                "Choose among these."
            )
        return np.isin(codes, [names.index(split) for split in splits])

    def of_patients(self, patients: Sequence[str], setting: str, where: Path) -> NDArray[np.bool_]:
        """(N,) which rows are of some patients; refuses an unknown patient, under the name of the `setting`."""
        codes, names = self.codes("patient")
        number_of = {name: number for number, name in enumerate(names)}
        unknown = [patient for patient in patients if patient not in number_of]
        if unknown:
            raise UserError(f"{setting}: {where} has no patient {unknown[0]!r}. Write the name as in the cohort.")
        return np.isin(codes, [number_of[patient] for patient in patients])

    def select(self, rows: NDArray[np.bool_] | NDArray[np.integer[Any]]) -> "PatchTable":
        """The rows of a boolean mask (N,) or of an index array, in that order."""
        arrow = self.arrow.filter(pa.array(rows)) if rows.dtype == bool else self.arrow.take(pa.array(rows))
        return PatchTable(arrow)

    def add_names(self, name: str, values: Sequence[str | None]) -> "PatchTable":
        """The table with one more column of names, a value per row."""
        return PatchTable(self.arrow.append_column(name, names_column(values, [1] * len(values))))


def build_table(
    counts: Sequence[int], named: Mapping[str, Sequence[str | None]], known: Mapping[str, Any]
) -> PatchTable:
    """The table of patches without pixels: `counts[s]` patches of each slide, one slide after the other.

    `named`: columns of names, one per slide or one per patch; `known`: numbers, one per patch, negative whole ones and
    NaN being missing. Columns of every table that are not given are empty.
    """
    total = sum(counts)
    columns: dict[str, Any] = {field.name: pa.nulls(total, field.type) for field in SCHEMA}
    for name, values in named.items():
        columns[name] = names_column(values, counts if len(values) == len(counts) else [1] * total)
    for name, values in known.items():
        column = pa.array(values, mask=values < 0 if values.dtype.kind == "i" else np.isnan(values))
        columns[name] = column.cast(SCHEMA.field(name).type)
    return PatchTable(pa.table(columns))


def names_column(names: Sequence[str | None], counts: Sequence[int]) -> pa.DictionaryArray:
    """`names[i]` repeated `counts[i]` times, dictionary-encoded in order of first appearance."""
    known: dict[str | None, int] = {}
    for name in names:
        if name is not None:
            known.setdefault(name, len(known))
    codes = np.repeat(np.array([known.get(name, -1) for name in names], np.int32), counts)
    return codes_column(codes, list(known))


def codes_column(codes: NDArray[np.integer[Any]], names: Sequence[str | None]) -> pa.DictionaryArray:
    """The names that codes (N,) stand for, dictionary-encoded; -1 is none."""
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string()))
