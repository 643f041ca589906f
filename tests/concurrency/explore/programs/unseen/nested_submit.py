"""A task of a pool that waits for another task of the same pool."""

import sys
from concurrent.futures import ThreadPoolExecutor

WORKERS = 4 if "repaired" in sys.argv else 2
pool = ThreadPoolExecutor(WORKERS)


def leaf(number):
    return number + 1


def branch(number):
    return pool.submit(leaf, number).result() * 2


def main():
    branches = [pool.submit(branch, number) for number in range(2)]
    assert [each.result() for each in branches] == [2, 4]


main()
