"""Findings, and their output for people, editors and other programs."""
