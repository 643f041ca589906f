"""The lines of Python's own library, each line once.

paceline prepare examples/language/recipe.py -o language-shards
"""

import sysconfig

import paceline

recipe = paceline.Recipe(
    paceline.Lines(f"{sysconfig.get_path('stdlib')}/[a-z]*.py"),
    rules={
        "the line has 8 characters or more": "length(trim(line)) >= 8",
        "the line has 96 characters or fewer": "length(line) <= 96",
        "the line is ASCII": "length(line) = octet_length(encode(line))",
    },
    key="line",
    columns={"line": "line"},
    splits={"train": 0.95, "test": 0.05},
)
