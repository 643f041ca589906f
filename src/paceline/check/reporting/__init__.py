"""Findings, and how people and programs are told of them."""
