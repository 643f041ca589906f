// --- what follows the gradients, by all threads of the device ---

INLINE int64_t chunks_of(const Call& c, int64_t update) {
    const int64_t first = update * c.batch, n = c.samples - first < c.batch ? c.samples - first : c.batch;
    return n < CHUNKS ? n : CHUNKS;
}

// The gradients of all chunks become one, and the weights follow it.
FUNCTION void change(const Call& c, int64_t update, int64_t thread, int64_t threads) {
    const int64_t chunks = chunks_of(c, update);
    for (int64_t q = thread; q < NUMBERS; q += threads) {
        R sum = c.gradients[q];
#pragma unroll 8
        for (int64_t k = 1; k < chunks; k++) sum += c.gradients[k * NUMBERS + q];
        c.gradients[q] = sum;
        if (c.update >= 0) apply_rule(c, q, q + 1, c.update + update + 1);
    }
    if (thread) return;
    for (int64_t k = 0; k < chunks; k++) c.losses[CHUNKS] += c.losses[k];
}

KERNEL paceline_change(const Call* c, int64_t update, int64_t) {
    change(*c, TURN + update, GRID_THREAD, GRID_THREADS);
}

KERNEL paceline_advance(const Call* c, int64_t updates, int64_t) { TURN += updates; }

// The optimizer's step alone, by gradients that lie with the first chunk.
KERNEL paceline_apply(const Call* c, int64_t, int64_t) {
    for (int64_t q = GRID_THREAD; q < NUMBERS; q += GRID_THREADS) apply_rule(*c, q, q + 1, c->update + 1);
}
