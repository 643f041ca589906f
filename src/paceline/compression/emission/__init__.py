"""A network as one C99 file: no malloc, constant tables, test vectors inside, a `main` that checks itself.

writer.py    the parts of a file: arrays, where values lie, layers, calls, and the functions that they need
kernels.py   how each step becomes a call, a class per kernel: small, vectors, cortex, floats
steps.py     the steps of a network as calls, in bytes or float32
loops.py     statements of `kernels` as loops, in float32
c_file.py    the whole file
text/        the functions in C
"""
