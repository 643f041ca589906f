"""Databases and their clients that wait for each other, but not for ever; to develop with."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from programs.parts import background, folder, python, repeat, run

POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), Path("/usr/bin"))
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")  # the server refuses to run as root


@contextmanager
def _postgres() -> Iterator[list[object]]:
    """Run a server on a socket in a folder, and yield the client's command."""
    os.chmod(tempfile.gettempdir(), 0o711)
    place = folder()
    os.chown(place, 65534, 65534)
    run(*AS_NOBODY, POSTGRES / "initdb", "-D", place / "data", "-U", "a", "-N")
    with background(*AS_NOBODY, POSTGRES / "postgres", "-D", place / "data", "-k", place, "-h", "", wait=4):
        yield ["psql", "-q", "-h", place, "-U", "a", "-d", "postgres"]


def server_with_an_idle_session() -> None:
    with _postgres() as client:
        text = " ".join(map(str, client))
        run("sh", "-c", f"(echo 'begin; select 1;'; sleep 900) | {text}")


def row_locked_by_a_slow_transaction() -> None:
    with _postgres() as client:
        run(*client, "-c", "create table stock (n int); insert into stock values (1)")
        slow = "begin; update stock set n = n + 1; select pg_sleep(40); commit"
        with background("sh", "-c", f"while true; do {' '.join(map(str, client))} -c '{slow}'; done", wait=2):
            repeat([*client, "-c", "update stock set n = n + 1"], pause=5)


def long_query_of_a_column_store() -> None:
    python(
        """
        import duckdb, time
        while True:
            duckdb.sql("select sum(a.range * b.range) from range(30000) a, range(3000) b").fetchall()
            time.sleep(24)
        """
    )


def connections_of_a_small_pool() -> None:
    """Four threads share one connection of SQLAlchemy, which each keeps for a slow statement."""
    python(
        """
        import threading, time, sqlalchemy
        engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.QueuePool, pool_size=1, max_overflow=0,
                                          pool_timeout=600, connect_args={"check_same_thread": False})
        def report():
            while True:
                with engine.connect() as connection:
                    connection.execute(sqlalchemy.text("select 1"))
                    time.sleep(30)
        threads = [threading.Thread(target=report) for _ in range(4)]
        for each in threads: each.start()
        for each in threads: each.join()
        """
    )


def shell_of_sqlite() -> None:
    run("sh", "-c", f"(while true; do echo 'select 1;'; sleep 60; done) | sqlite3 {folder() / 'a.db'}")


def writers_with_a_busy_timeout() -> None:
    file = folder() / "a.db"
    run("sqlite3", file, "create table a (n int)")
    hold = f"(echo 'begin immediate;'; sleep 35; echo 'commit;') | sqlite3 {file}"
    with background("sh", "-c", f"while true; do {hold}; sleep 1; done", wait=2):
        while True:
            run("sqlite3", "-cmd", ".timeout 100000", file, "insert into a values (1)")
            time.sleep(3)


PROGRAMS = {
    each.__name__: each
    for each in (
        server_with_an_idle_session, row_locked_by_a_slow_transaction, long_query_of_a_column_store,
        connections_of_a_small_pool, shell_of_sqlite, writers_with_a_busy_timeout,
    )
}  # fmt: skip
