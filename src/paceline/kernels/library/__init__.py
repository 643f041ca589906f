"""What a kernel library is for: several ways to do the same, and the best one for a shape by measuring.

convolution.py    `conv2d`, with gradients that are convolutions too, by the quickest row of a table of algorithms
fixed.py          inference by bytes and 32-bit sums
recurrent.py      stacked LSTM layers, layer by layer or as a wavefront over (layer, time)
text/             their C++, compiled once for the machine (native.py)
"""

from paceline.kernels.library.convolution import ALGORITHMS, AlgorithmChoice, Shape, choose, conv2d
from paceline.kernels.library.fixed import fixed
from paceline.kernels.library.recurrent import Lstm

__all__ = ["ALGORITHMS", "AlgorithmChoice", "Lstm", "Shape", "choose", "conv2d", "fixed"]
