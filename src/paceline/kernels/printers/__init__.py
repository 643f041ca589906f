"""Programs and plans as text.

cpp.py      C++: nests.py and others.py print statements, pixels.py of one sample's neighbours
study.py    a published study's form of it; dealt.py the same among ranks
cuda.py     CUDA C: the same nests by the threads of a block, and the study's form
numpy.py    computes instead of printing, slowly: what all others are held to

The parts that are the same for all networks stand beside, as C++:

any machine   call  functions  update
a CPU         prelude  group  wide  team  gather
a GPU         device  block  change  grid  layers
"""
