"""Transfers between accounts: each takes the two accounts' locks, in the order of its arguments."""

import sys
import threading

REPAIRED = "repaired" in sys.argv


class Account:
    def __init__(self, number, balance):
        self.number, self.balance = number, balance
        self.lock = threading.Lock()


def transfer(source, target, amount):
    first, second = sorted((source, target), key=lambda each: each.number) if REPAIRED else (source, target)
    with first.lock, second.lock:
        source.balance -= amount
        target.balance += amount


def main():
    a, b = Account(1, 100), Account(2, 100)
    threads = [threading.Thread(target=transfer, args=pair) for pair in ((a, b, 10), (b, a, 30))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (a.balance, b.balance) == (120, 80)


main()
