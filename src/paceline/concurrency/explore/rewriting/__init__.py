"""The program's own files are rewritten when they are imported: each access of shared data becomes an operation."""
