"""A trained network, small and fast enough: searched for by measurements, written as one C99 file.

network.py  reading.py    the network for inference as data or as statements of `kernels`; how a module is read
integers.py               its ranges, its form in whole numbers, the module that computes them
pruning.py                narrower models; samples.py: which data the search sees, and how good a network is on them
emission/                 C files; building.py compiles, loads, sizes and times them
onnx_file.py  precision.py    the same network as ONNX; any model in PyTorch's own precisions
search.py  result.py  page.py    the search, for the machines that it knows; its frontier and bounds; its page
"""
