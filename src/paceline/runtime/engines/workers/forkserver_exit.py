"""Makes the forkserver, the only process that imports this module, exit at once when its parent has ended.

Its workers end with it. Finalizing all modules that it has loaded would take a second or two.
"""

import atexit
import os

atexit.register(os._exit, 0)
