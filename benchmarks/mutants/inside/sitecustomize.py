"""Run by Python at the start of every process of a traced run of tests, workers too."""

import os

if "MUTANTS_TRACE" in os.environ:
    import line_tracer

    line_tracer.start(os.environ["MUTANTS_TRACE"])
