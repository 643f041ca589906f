"""Imported by the forkserver alone. When its parent has gone it leaves at once, and its workers with it: to take down
all that is loaded there would take a second or two.
"""

import atexit
import os

atexit.register(os._exit, 0)
