"""Operators: the submodules of a model as workers of `ampnet` hold them.

recording.py   the model's own `forward`, run on stand-ins for values: which calls an instance makes
planning.py    which worker holds which operator; what is refused before the first update, after an instance was
               computed operator by operator and compared with the model itself; one worker's operators
worker.py      a worker of `algorithms.dataflow` with its operators, whatever carries its messages
"""
