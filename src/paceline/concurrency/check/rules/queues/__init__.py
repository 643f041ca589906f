"""Queues whose readers or writers wait for ever: PC2xx."""
