"""Jobs of one shape that are trained together: one on each core, one in each lane, or by torch.func.vmap."""
