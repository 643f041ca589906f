// --- what follows the gradients, by all threads of the device ---

#define DEEP 32  // numbers that a thread asks for before it needs the first

INLINE int64_t chunks_of(const Call& c, int64_t update) {
    const int64_t first = update * c.batch, n = c.samples - first < c.batch ? c.samples - first : c.batch;
    return n < CHUNKS ? n : CHUNKS;
}

// One after the other, in order; a chunk that is not there adds nothing.
template <class T> FUNCTION T sum_of_chunks(const T* of_first, int64_t step, int64_t chunks) {
    T sum = of_first[0];
    for (int64_t k = 1; k < chunks; k += DEEP) {
        T some[DEEP];
#pragma unroll
        for (int j = 0; j < DEEP; j++) some[j] = k + j < chunks ? of_first[(k + j) * step] : T(0);
#pragma unroll
        for (int j = 0; j < DEEP; j++) sum += some[j];
    }
    return sum;
}

// The gradients of all chunks become one, and the weights follow it. The last thread has the losses, since it has the
// fewest weights.
FUNCTION void change(const Call& c, int64_t update, int64_t thread, int64_t threads) {
    const int64_t chunks = chunks_of(c, update);
    R* const gradients = in_device(c.gradients);
    for (int64_t q = thread; q < NUMBERS; q += threads) {
        gradients[q] = sum_of_chunks(gradients + q, NUMBERS, chunks);
        if (c.update >= 0) apply_rule(c, c.settings, q, q + 1, c.update + update + 1);
    }
    if (thread == threads - 1) c.losses[CHUNKS] += sum_of_chunks(in_device(c.losses), 1, chunks);
}

KERNEL paceline_change(const Call* c, int64_t update, int64_t) {
    change(*c, TURN + update, GRID_THREAD, GRID_THREADS);
}

KERNEL paceline_advance(const Call* c, int64_t updates, int64_t) { TURN += updates; }

// The optimizer's step alone, by gradients that lie with the first chunk.
KERNEL paceline_apply(const Call* c, int64_t, int64_t) {
    for (int64_t q = GRID_THREAD; q < NUMBERS; q += GRID_THREADS) apply_rule(*c, c->settings, q, q + 1, c->update + 1);
}
