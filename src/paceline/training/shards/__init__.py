"""A folder of shards: columns of samples as raw files that a training maps into memory.

    folder/
      manifest.json            what it holds and where it came from; written last
      rejected.parquet         the rows that were left out: file, line, rule, record
      train/00000.x.bin        rows 0 to R - 1 of column x, one after another, little-endian
      train/00001.x.bin        rows R to 2 R - 1; every shard but the last holds R rows, a multiple of 4,096
      train/00000.text.bin     of a ragged column: the values of all rows, one after another,
      train/00000.text.ends    and the position after the last value of each row, as int64

A row of a fixed column has the same size everywhere, so the files of all shards are mapped at adjacent addresses and a
sample is found by its number alone. This package needs NumPy, and pyarrow for what it writes; it never needs PyTorch.
"""
