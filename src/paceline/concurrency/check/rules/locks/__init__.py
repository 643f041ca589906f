"""Locks, and what a signal handler, a destructor or a fork does to them: PC1xx."""
