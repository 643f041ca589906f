"""Splits: the part of the model that each worker holds. So far by depth: stages, runs of neighbouring pieces.

A table {module: how} for splits inside layers will be the general form, of which this is one recipe.
"""
