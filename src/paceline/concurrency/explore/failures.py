"""Exceptions as findings: which one, in which thread, at which line of the program."""

from __future__ import annotations

import linecache
from types import TracebackType

from paceline.concurrency.explore.finding import Finding
from paceline.concurrency.explore.operation import Place

MARK = "__explore__"


def exception_in(who: str, error: BaseException, kind: str = "exception", note: str = "") -> Finding:
    """Describe an exception that ended a thread, a task or the program."""
    place = last_place(error.__traceback__)
    source = linecache.getline(place.file, place.line).strip() if place else ""
    text = str(error) or source.removeprefix("assert ")
    message = f"{who}: {type(error).__name__}: {text}" if text else f"{who}: {type(error).__name__}"
    scene = (who, f"raises {type(error).__name__}{f' in `{source}`' if source else ''}", place)
    return Finding(kind, message + note, (scene,), message, place)


def last_place(trace: TracebackType | None) -> Place | None:
    """Return the innermost line of the program in a traceback."""
    place = None
    while trace is not None:
        if MARK in trace.tb_frame.f_globals:
            code = trace.tb_frame.f_code
            place = Place(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return place
