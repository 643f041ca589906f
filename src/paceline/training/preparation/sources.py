"""Where rows come from. A source names its files and the fields of its rows, and does not depend on engines.

Sources of text (`Csv`, `JsonLines`, `Lines`) have fields that begin as text and are checked against a type; the others
come with types of their own.
"""

from __future__ import annotations

import csv
import glob
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import DataError, suggest
from paceline.training.jobs.idx import read_idx
from paceline.training.preparation.text import check_encoding, first_line

if TYPE_CHECKING:
    import pyarrow as pa

#: Types of text fields; with a `?` behind it, a field may be missing.
TYPES = ("int", "float", "bool", "text", "date", "timestamp")
#: The way out where files of one source have different fields.
OTHER_FIELDS = "prepare files with other fields by a recipe of their own, and train on a Mix of the folders"
Files = str | Path | Sequence[str | Path]
LARGEST_IMAGE = 1 << 28  # bytes of a file
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm", ".tif", ".tiff"}


class RowSource(Protocol):
    """Rows of one kind of file."""

    @property
    def kind(self) -> str: ...

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields of a row with their types; "" for a type that the files say themselves."""

    def paths(self) -> list[Path]:
        """Return the files in a fixed order, or raise `DataError` if there is none."""


@dataclass(frozen=True)
class Csv:
    """Rows of delimited text, such as CSV.

    `schema` gives each field, in the order of the file, a type: int, float, bool, text, date or timestamp. A field that
    may be missing has a `?` behind its type; `missing` lists what stands for a missing field. `encoding` is a name that
    Python knows, such as "latin-1" or "utf-16"; a line that cannot be decoded is rejected.
    """

    files: Files
    schema: Mapping[str, str]
    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    missing: Sequence[str] = ("",)
    encoding: str = "utf-8"
    kind: str = field(default="csv", init=False)

    def __post_init__(self) -> None:
        _check_schema(self.schema)
        check_encoding(self.encoding)
        if len(self.delimiter) != 1 or len(self.quote) > 1:
            raise DataError(
                f"delimiter={self.delimiter!r} and quote={self.quote!r} are not one character each; quote='' stands "
                "for a file without quotes"
            )

    @property
    def fields(self) -> Mapping[str, str]:
        return self.schema

    def paths(self) -> list[Path]:
        return found(self.files)

    def names_in(self, line: bytes) -> list[str]:
        """Return the names that a line, the first of a file, gives the fields."""
        text = line.decode("utf-8-sig", "replace")
        quote = {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        try:
            return next(csv.reader([text], delimiter=self.delimiter, **quote), [])
        except csv.Error:  # a field of more than csv.field_size_limit()
            return []

    def fault_of_header(self, line: bytes) -> str | None:
        """Return what a file's first line says against the schema, if it does: a field is missing or has moved.

        A schema may give fields other names than the header.
        """
        names, expected = self.names_in(line), list(self.schema)
        moved = any(name in self.schema and name != at for name, at in zip(names, expected, strict=False))
        if len(names) == len(expected) and not moved:
            return None
        actual, declared = ", ".join(names), ", ".join(expected)
        if not names or not actual.isprintable():
            return "does not begin with a line of text; read it by the source of its kind, such as paceline.Parquet"
        return (
            f"begins with the fields {actual:.200}, but the schema has {declared:.200}; give the schema every field "
            "of the "
            f"header, in its order (columns= says which are kept), or {OTHER_FIELDS}"
        )


@dataclass(frozen=True)
class JsonLines:
    """One JSON object per line. `schema` and `encoding` are those of `Csv`; fields that are not named are left out."""

    files: Files
    schema: Mapping[str, str]
    encoding: str = "utf-8"
    kind: str = field(default="jsonl", init=False)

    def __post_init__(self) -> None:
        _check_schema(self.schema)
        check_encoding(self.encoding)

    @property
    def fields(self) -> Mapping[str, str]:
        return self.schema

    def paths(self) -> list[Path]:
        return found(self.files)


@dataclass(frozen=True)
class Lines:
    """Plain text, a row per line, with the field `line`; `encoding` is that of `Csv`."""

    files: Files
    encoding: str = "utf-8"
    kind: str = field(default="lines", init=False)

    def __post_init__(self) -> None:
        check_encoding(self.encoding)

    @property
    def fields(self) -> Mapping[str, str]:
        return {"line": "text"}

    def paths(self) -> list[Path]:
        return found(self.files)


@dataclass(frozen=True)
class Parquet:
    """Parquet files; their fields and types are those of the files."""

    files: Files
    kind: str = field(default="parquet", init=False)

    @property
    def fields(self) -> Mapping[str, str]:
        return {}

    def paths(self) -> list[Path]:
        return found(self.files)


@dataclass(frozen=True)
class Arrow:
    """Arrow IPC files or streams, also those of Hugging Face datasets."""

    files: Files
    kind: str = field(default="arrow", init=False)

    @property
    def fields(self) -> Mapping[str, str]:
        return {}

    def paths(self) -> list[Path]:
        return found(self.files)

    def batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file."""
        import pyarrow as pa

        opened = self._opened(path)
        batches = map(opened.get_batch, range(opened.num_record_batches)) if hasattr(opened, "get_batch") else opened
        try:
            for batch in batches:
                batch.validate(full=True)  # offsets of a damaged file lead anywhere in memory
                yield batch
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} is damaged or was not written to its end: {error}") from error

    def schema(self, path: Path) -> pa.Schema:
        """Return the fields of a file's rows with their types."""
        return self._opened(path).schema

    def _opened(self, path: Path) -> Any:
        import pyarrow as pa

        mapped = pa.memory_map(str(path))
        try:
            return pa.ipc.open_file(mapped) if mapped.read_at(6, 0) == b"ARROW1" else pa.ipc.open_stream(mapped)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} is no Arrow file, or was not written to its end: {error}") from error


@dataclass(frozen=True)
class Images:
    """A folder of images in a folder per class, with the fields `image` (the bytes of the file), `label` and `path`."""

    folder: str | Path
    kind: str = field(default="images", init=False)

    @property
    def fields(self) -> Mapping[str, str]:
        return {"image": "", "label": "", "path": ""}

    def paths(self) -> list[Path]:
        root = Path(self.folder)
        files = sorted(path for path in root.glob("*/*") if path.suffix.lower() in IMAGES and path.is_file())
        if not files:
            raise DataError(f"{root} holds no images in a folder per class, such as {root}/cat/1.png")
        return files

    def batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        """Yield the one row of an image."""
        import pyarrow as pa

        shown, label = (
            os.fsencode(each).decode(errors="replace") for each in (path.relative_to(self.folder), path.parent.name)
        )
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST_IMAGE + 1)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        if len(content) > LARGEST_IMAGE:
            raise DataError(f"{path} has more than {LARGEST_IMAGE:,} bytes, so it is no image; remove it")
        yield pa.record_batch({"image": [content], "label": [label], "path": [shown]})


@dataclass(frozen=True)
class Idx:
    """Images and labels in the IDX format of MNIST, gzipped or not; the fields `image` (its pixels) and `label`."""

    images: str | Path
    labels: str | Path
    kind: str = field(default="idx", init=False)

    @property
    def fields(self) -> Mapping[str, str]:
        return {"image": "", "label": ""}

    def paths(self) -> list[Path]:
        for path in (self.images, self.labels):
            if not Path(path).is_file():
                raise DataError(f"there is no file {path}")
        return [Path(self.images)]

    def batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        """Yield the images with their labels, some thousands at a time."""
        import numpy as np
        import pyarrow as pa

        images, labels = _read_idx(path), _read_idx(Path(self.labels))
        if not images.size or not images.ndim or labels.ndim != 1:
            raise DataError(f"{path} holds {images.shape} numbers and {self.labels} {labels.shape}: no labelled images")
        if len(images) != len(labels):
            raise DataError(f"{path} holds {len(images)} images, but {self.labels} {len(labels)} labels")
        flat = images.reshape(len(images), -1)
        for first in range(0, len(flat), 8192):
            rows = np.ascontiguousarray(flat[first : first + 8192])
            pixels = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
            yield pa.record_batch({"image": pixels, "label": pa.array(labels[first : first + 8192].astype(np.int64))})


def found(files: Files) -> list[Path]:
    """Return the files that paths and patterns name, in a fixed order."""
    patterns = [files] if isinstance(files, str | Path) else list(files)
    paths: list[Path] = []
    for each in patterns:
        matching = sorted(Path(path) for path in glob.glob(str(each), recursive=True))
        matching = [path for path in matching if path.is_file()]
        if not matching:
            way_out = f"; it is a folder, whose files are {each}/**/*" if Path(each).is_dir() else ""
            raise DataError(f"no file matches {each}{way_out}")
        paths += [path for path in matching if path not in paths]
    for path in paths:
        if not str(path).isascii() and "\ufffd" in os.fsencode(path).decode(errors="replace"):
            raise DataError(f"the name of {path} is not UTF-8; rename the file")
    return paths


def check_headers(sources: Sequence[RowSource]) -> None:
    """Refuse files that say other fields than the schema, or than the source's first file."""
    for source in sources:
        if isinstance(source, Arrow):
            first_path, *paths = source.paths()
            schema = source.schema(first_path)
            for path in paths:
                if not source.schema(path).equals(schema):
                    raise DataError(f"{path} has other fields or types than {first_path}; {OTHER_FIELDS}")
        if isinstance(source, Csv) and source.header:
            first: tuple[Path, list[str]] | None = None
            for path in source.paths():
                line = first_line(path, source.encoding)
                if not line:
                    continue
                if (fault := source.fault_of_header(line)) is not None:
                    raise DataError(f"{path} {fault}")
                names = source.names_in(line)
                first = first or (path, names)
                if names != first[1]:
                    actual, reference = ", ".join(names), ", ".join(first[1])
                    raise DataError(
                        f"{path} begins with the fields {actual:.200}, but {first[0]} with {reference:.200}; "
                        f"{OTHER_FIELDS}"
                    )


def _read_idx(path: Path) -> Any:
    """Return the bytes of an IDX file as an array, or raise `DataError`."""
    try:
        array = read_idx(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if array is None:
        raise DataError(f"{path} is not an IDX file of bytes, or larger than the memory")
    return array


def _check_schema(schema: Mapping[str, str]) -> None:
    if not schema:
        raise DataError("schema= is empty; give each field a type, such as {'id': 'int', 'name': 'text?'}")
    for name, kind in schema.items():
        if kind.removesuffix("?") not in TYPES:
            raise DataError(f"the field {name!r} has the type {kind!r}; {suggest(kind.removesuffix('?'), TYPES)}")


def described(source: RowSource) -> dict[str, Any]:
    """Return a source as data."""
    return {name: value if isinstance(value, bool) else _plain(value) for name, value in vars(source).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [str(each) for each in value]
    return str(value)
