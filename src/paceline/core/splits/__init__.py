"""Splits: what each worker holds of the model. So far by depth: stages, which are runs of neighbouring pieces.

A table {module: how} for splits inside layers will be the general form, of which this is one recipe.
"""
