"""Programs and plans as text.

cpp.py      the whole text in C++; kernels/cuda/gpu.py in CUDA C
printer.py  a step as a function, with the statements that are the same everywhere, by the parts that it is handed:
                nests.py, block.py, study.py    how contractions and expressions are computed
                access.py, block.py             which threads go through which rounds
access.py   how buffers are read and written
numpy.py    computes instead of printing, slowly: the reference for all others

The parts of a text that are the same for all networks are files of C++:

any machine   call  functions  update
a CPU         prelude  group  wide  team  gather
a GPU         device  block  change  grid  layers
"""
