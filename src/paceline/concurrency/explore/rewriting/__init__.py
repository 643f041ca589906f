"""The program's own files are rewritten when they are imported: each access of shared data becomes an operation.

`accesses` rewrites the syntax tree, `points` is what the rewritten code calls, `shared_names` says which variables
threads can share, `importing` puts it in the way of `import`. Line numbers stay, and so do tracebacks. What is not
rewritten, the standard library and installed packages, cannot be interrupted.
"""
