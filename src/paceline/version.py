"""The version of Paceline, which the package offers as `paceline.__version__` and every run records."""

__version__ = "0.1.0"
