"""Prepares the forkserver, the only process that imports this module, and the last module that it imports.

It exits at once when its parent has ended, and its workers with it: finalizing all modules that it has loaded would
take a second or two. Its objects outlive every worker, so a worker's garbage collector neither looks at them nor, by
writing to them, copies the pages that they lie in.
"""

import atexit
import gc
import os

atexit.register(os._exit, 0)
gc.freeze()
