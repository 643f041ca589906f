"""What the authors test with, for whoever adds a member or writes a plug-in.

jobs.py         small models that between them have everything awkward
conformance.py  what every plan must keep, whatever the engine
killing.py      real workers, really killed
leaks.py        that a test leaves no process, thread, descriptor or file behind
"""
