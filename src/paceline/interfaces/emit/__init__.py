"""Native files that train a job on several machines: a batch script for Slurm, manifests for Kubernetes, a Dockerfile.

Everything here is a function from a `Training` to a text. Nothing is submitted, and nothing is read but the versions
of installed packages.
"""
