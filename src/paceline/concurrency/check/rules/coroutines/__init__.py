"""Asyncio, and its bridges to threads: PC3xx."""
