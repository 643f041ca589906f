"""Generated kernels on a GPU: the same program, its text in CUDA C.

device    compiles a text with NVRTC, and launches its kernels on PyTorch's stream
gpu       the processor of a module whose parameters lie on a GPU, the text of a plan in CUDA C, and how updates are
          launched: kernel by kernel, many updates captured in a graph, one kernel whose blocks wait for each other
"""
