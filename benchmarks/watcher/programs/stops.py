"""Programs that were stopped, alone or with others that wait for them."""

from __future__ import annotations

import os
import signal


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def child() -> None:
    if os.fork() == 0:
        stop()
    os.wait()


PROGRAMS = {"alone": stop, "child": child}
