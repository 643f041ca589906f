"""Ranks: collectives, and messages from one to another: PC5xx."""
