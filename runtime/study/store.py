# Tests: test/runtime/study/test_explore.py
"""Points and what came of them, in one SQLite file that outlives its writer at any moment.

A point is written in one transaction when it is finished; its key is the checksums of target, model, pipeline and
compiler, so that a point is run once whichever space asks for it, and anew when the compiler has changed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from frustum.runtime.failures import UsageError
from frustum.runtime.study.point import Outcome, Point, Status

TABLE = """create table if not exists points (
    target text, model text, pipeline text, compiler text,
    model_name text not null, words text not null, machine text not null, options text not null,
    status text not null, figures text not null, message text not null,
    needed text not null, available text not null, cpu_seconds real not null,
    primary key (target, model, pipeline, compiler))"""
SECONDS_TO_WAIT = 60
"""For another writer of the same file."""
OF_KEY = "target = ? and model = ? and pipeline = ? and compiler = ?"


class Store:
    """The file; use as what `opened` gives."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def find(self, point: Point) -> Outcome | None:
        """What came of a point, if it is finished; one whose fields are damaged is taken out, to be run again."""
        columns = "status, figures, message, needed, available, cpu_seconds"
        row = self.connection.execute(f"select {columns} from points where {OF_KEY}", point.key).fetchone()
        found = None if row is None else _outcome(row)
        if row is not None and found is None:
            with self.connection:
                self.connection.execute(f"delete from points where {OF_KEY}", point.key)
        return found

    def add(self, point: Point, result: Outcome) -> None:
        """A finished point; what another process has finished stays."""
        row = (
            *point.key, point.model, json.dumps(dict(point.words)), json.dumps(dict(point.target)),
            json.dumps(dict(point.options)), result.status, json.dumps(dict(result.figures)), result.message,
            result.needed, result.available, result.seconds,
        )  # fmt: skip
        with self.connection:
            self.connection.execute(f"insert or ignore into points values ({', '.join('?' * len(row))})", row)


def _outcome(row: tuple[Any, ...]) -> Outcome | None:
    """What a row says; None where a field holds what no writer puts there."""
    status, figures, message, needed, available, seconds = row
    try:
        found = json.loads(figures)
    except (TypeError, ValueError, RecursionError):
        return None
    words = (message, needed, available)
    is_sound = status in get_args(Status) and all(isinstance(word, str) for word in words) and _is_number(seconds)
    if not is_sound or not isinstance(found, dict) or not all(map(_is_number, found.values())):
        return None
    return Outcome(status, found, message, needed, available, seconds)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    """The store in a file, which is made; UsageError where it is something else or cannot be written."""
    try:
        connection = sqlite3.connect(path, timeout=SECONDS_TO_WAIT)
        try:
            connection.execute("pragma journal_mode = wal")
            with connection:
                connection.execute(TABLE)
            yield Store(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UsageError(f"{path}: error: cannot be used as a store of points: {error}") from error
