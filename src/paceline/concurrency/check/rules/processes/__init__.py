"""Child processes, their pipes and pools: PC2xx."""
