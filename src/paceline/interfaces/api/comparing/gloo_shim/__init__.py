"""What stands in for gloo in a script that is not changed: `sitecustomize`, which Python runs when a process starts.

It is found through PYTHONPATH by all processes of the script, no matter what starts them, and by no others.
"""
