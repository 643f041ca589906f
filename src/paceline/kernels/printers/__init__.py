"""Programs and plans as text.

cpp.py      the whole text in C++; cuda.py in CUDA C
printer.py  a step as a function, by the parts that it is handed:
                nests.py, pixels.py, block.py, study.py, dealt.py    how contractions and expressions are computed
                threads.py, block.py                                 which threads go through which rounds
access.py   how buffers are read and written; others.py the statements that are the same everywhere
numpy.py    computes instead of printing, slowly: the reference for all others

The parts of a text that are the same for all networks are files of C++:

any machine   call  functions  update
a CPU         prelude  group  wide  team  gather
a GPU         device  block  change  grid  layers
"""
