"""From the columns of an engine's result to the rows that shards hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import DataError
from paceline.training.preparation.recipe import Expression, Recipe, Words
from paceline.training.preparation.sql import output_names
from paceline.training.shards.manifest import Column
from paceline.training.shards.writing import Ragged, Rows

if TYPE_CHECKING:
    import pyarrow as pa

#: Floating-point columns are stored as float32, which is what models compute in.
FLOATS = {"double": "<f4", "float": "<f4", "halffloat": "<f2"}


def transformed(recipe: Recipe, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches as the recipe's `transform` makes them."""
    if recipe.transform is None:
        yield from batches
        return
    import pyarrow as pa

    for batch in batches:
        table = _called(recipe.transform, pa.Table.from_batches([batch]))
        if not isinstance(table, pa.Table) or table.num_rows != batch.num_rows:
            got = f"{table.num_rows} rows for {batch.num_rows}" if isinstance(table, pa.Table) else repr(type(table))
            raise DataError(f"transform= returned {got}; it must return a pyarrow.Table with as many rows")
        yield from table.combine_chunks().to_batches()


def _called(transform: Callable[[Any], Any], rows: pa.Table) -> Any:
    """Return what a transform makes of rows, or raise `DataError` with the first row at which it fails."""
    try:
        return transform(rows)
    except Exception as error:
        first, last, fault = 0, rows.num_rows, error
        while last - first > 1:
            middle = (first + last) // 2
            try:
                transform(rows.slice(first, middle - first))
                first = middle
            except Exception as smaller:
                last, fault = middle, smaller
        row = ", ".join(f"{name}={value!r:.60}" for name, value in rows.slice(first, 1).to_pylist()[0].items())
        reason = f"{type(fault).__name__}: {fault}".partition("\n")[0]
        raise DataError(
            f"transform= fails at the row {row}: {reason}; reject such rows by a rule, or return a value for them"
        ) from error


class Encoder:
    """Turns batches of an engine into rows of shards. `words` are the vocabularies of `Words` columns."""

    def __init__(self, columns: Mapping[str, Expression], words: Mapping[str, Sequence[str]]) -> None:
        self.columns, self.words = columns, words

    def described(self, schema: pa.Schema) -> dict[str, Column]:
        """Return what the rows of each column are, from the schema of the result; `transform` may add and omit some."""
        outputs = {name: output_names(name, made) for name, made in self.columns.items()}
        covered = {each for names in outputs.values() for each in names}
        present = {name: self.columns[name] for name, names in outputs.items() if set(names) <= set(schema.names)}
        columns = present | {name: name for name in schema.names if name not in covered}
        return {name: self._column(name, each, schema) for name, each in columns.items()}

    def rows(self, table: pa.Table | pa.RecordBatch, columns: Mapping[str, Column]) -> dict[str, Rows]:
        """Return the rows of a batch."""
        return {name: self._rows(name, column, table) for name, column in columns.items()}

    def _column(self, name: str, expression: Expression, schema: pa.Schema) -> Column:
        if isinstance(expression, Words):
            return Column("<i8", vocabulary=tuple(self.words[name]))
        if not isinstance(expression, str):
            return Column("<f4", (len(expression),))
        return column_of(name, schema.field(name).type)

    def _rows(self, name: str, column: Column, table: Any) -> Rows:
        expression = self.columns.get(name, name)
        if not isinstance(expression, str | Words):
            parts = [_flat(table.column(each)) for each in output_names(name, expression)]
            return _interleaved([part.to_numpy(zero_copy_only=False) for part in parts], column.dtype)
        array = _flat(table.column(name))
        if isinstance(expression, Words):
            import pyarrow as pa
            import pyarrow.compute as pc

            positions = pc.index_in(array, value_set=pa.array(column.vocabulary, array.type))
            return np.asarray(pc.add(pc.fill_null(positions, -1), 1).to_numpy(zero_copy_only=False), np.int64)
        return ragged_rows(array, column) if column.ragged else fixed_rows(array, column)


def column_of(name: str, kind: pa.DataType) -> Column:
    """Return how a column of an Arrow type is stored, or raise `DataError`."""
    import pyarrow as pa

    t = pa.types
    if t.is_fixed_size_list(kind):
        inner = column_of(name, kind.value_type)
        return Column(inner.dtype, (kind.list_size, *inner.shape))
    if t.is_list(kind) or t.is_large_list(kind):  # of numbers
        inner = column_of(name, kind.value_type)
        if not inner.ragged and not inner.shape:
            return Column(inner.dtype, ragged=True)
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return Column("|u1", ragged=True, text=True)
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return Column("|u1", ragged=True)
    if t.is_floating(kind):
        return Column(FLOATS[str(kind)])
    if t.is_integer(kind):
        return Column(np.dtype(kind.to_pandas_dtype()).newbyteorder("<").str)
    if t.is_boolean(kind):
        return Column("|b1")
    raise DataError(
        f"the column {name!r} is of type {kind}, which cannot be stored; cast it in the recipe, "
        "for example with CAST(... AS DOUBLE) or epoch(...)"
    )


def fixed_rows(array: pa.Array, column: Column) -> Rows:
    while column.shape and hasattr(array, "flatten") and not _is_number(array):
        array = array.flatten()
    values = array.to_numpy(zero_copy_only=False)
    return np.asarray(values, column.dtype).reshape(-1, *column.shape)


def ragged_rows(array: pa.Array, column: Column) -> Ragged:
    import pyarrow as pa

    if pa.types.is_list(array.type) and array.flatten().null_count:
        raise DataError("a list of a row has a null inside, for which shards have no number; filter it in the recipe")
    if column.text or pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        array = array.cast(pa.large_binary())
        offsets = np.frombuffer(array.buffers()[1], "<i8")[array.offset : array.offset + len(array) + 1]
        data = array.buffers()[2]
        values = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    else:
        array = array.cast(pa.large_list(array.type.value_type))
        offsets = np.asarray(array.offsets)
        values = array.values.to_numpy(zero_copy_only=False)
    return Ragged(np.asarray(values[offsets[0] : offsets[-1]], column.dtype), np.diff(offsets).astype(np.int64))


def _interleaved(parts: Sequence[np.ndarray[Any, Any]], dtype: str) -> np.ndarray[Any, Any]:
    """Return vectors of which each part is a place; some thousand rows at a time stay in a core's cache."""
    interleaved = np.empty((len(parts[0]), len(parts)), dtype)
    for first in range(0, len(interleaved), 4096):
        some = slice(first, first + 4096)
        np.stack([part[some] for part in parts], axis=1, out=interleaved[some], casting="unsafe")
    return interleaved


def _flat(column: Any) -> Any:
    """Return one array of a column, which may come in chunks."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _is_number(array: pa.Array) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_primitive(array.type))
