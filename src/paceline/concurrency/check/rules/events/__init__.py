"""Events, conditions, semaphores and barriers that no one signals: PC2xx."""
