"""An exception in a Future that no one reads: one of two threads removes what the other expects."""

import sys
from concurrent.futures import ThreadPoolExecutor

REPAIRED = "repaired" in sys.argv
sessions = {"a": 1}


def close(name):
    if REPAIRED:
        sessions.pop(name, None)
    elif name in sessions:
        del sessions[name]


def main():
    with ThreadPoolExecutor(2) as pool:
        pool.submit(close, "a")
        pool.submit(close, "a")


if __name__ == "__main__":
    main()
