// --- a block of threads, on one sample ---

extern __shared__ double shared_memory[];  // the block's own: the call, a sample's numbers and the weights, if they fit

#define OWN_PLACE ((R*)((char*)shared_memory + OWN_CALL))

// The parts of a sum, made by neighbouring threads; always the same tree, and all of them learn the result.
template <int PARTS> INLINE R sum_of_parts(R part) {
    for (int half = PARTS / 2; half; half /= 2) part += __shfl_xor_sync(0xffffffffu, part, half);
    return part;
}

FUNCTION void prepare(const Call& c, Group& g, int64_t first, int64_t n, int64_t k) {
    const int64_t sample = c.order[first + k];
    g.number = k;
    g.still = c.still;
    g.groups = g.samples = n;
    g.weights = OWN_WEIGHTS ? OWN_PLACE + OWN_NUMBERS * ARENA : in_device(c.weights);
    g.first_arena = c.arenas;
    g.arena = OWN_NUMBERS ? OWN_PLACE : in_device(c.arenas) + (PHASES > 1 ? k : (int64_t)OWN_ARENA) * ARENA;
    g.rows[0] = TOKENS ? nullptr : in_device(c.x) + sample * INPUTS;
    g.tokens[0] = TOKENS ? in_device(c.tokens) + sample * INPUTS : nullptr;
    g.targets[0] = c.targets + sample * OUTPUTS;
    g.position[0] = (uint32_t)k;
    g.labels[0] = c.labels ? c.labels + sample * PLACES : nullptr;
    g.valid = R(1);
    g.share = g.weight = R(1) / R(n);
    g.loss[0] = 0;
    R sum = 0;
    for (int64_t k = first; c.labels && k < first + n; k++)
        for (int p = 0; p < PLACES; p++) sum += weight_of(c.labels[c.order[k] * PLACES + p]);
    g.counted = R(1) / sum;
}

FUNCTION void copy(const R* from, R* to, int count) {
    for (int q = THREAD; q < count; q += THREADS) to[q] = from[q];
}

// Whoever needs these waits for all.
FUNCTION void take_inputs(Group& g, Array<V, INPUTS> places) { copy(g.rows[0], address(places), INPUTS); }

FUNCTION void set_to_zero(R* numbers, int64_t count) {
    for (int q = THREAD; q < count; q += THREADS) numbers[q] = 0;
}

INLINE R group_sum(V v, int64_t, int64_t) { return v; }
INLINE R first_lane(V v) { return v; }

// --- losses, with their gradients by the scores: every thread makes the sums for itself, in the same order ---

template <int N> FUNCTION void cross_entropy(Group& g, Array<V, N * PLACES> every, Array<V, N * PLACES> slopes, R smoothing) {
    for (int p = 0; p < PLACES; p++) {
        const Array<V, N> scores = part<N>(every, p * N), gradient = part<N>(slopes, p * N);
        R best = scores[0], sum = 0, total = 0;
        for (int k = 1; k < N; k++) best = larger(scores[k], best);
        for (int k = THREAD; k < N; k += THREADS) gradient[k] = exp_(scores[k] - best);
        SYNC;
        for (int k = 0; k < N; k++) sum += gradient[k], total += scores[k];
        SYNC;
        const int64_t label = g.labels[0][p];
        const R weight = weight_of(label) * g.counted;
        const R share = weight / sum, wanted = weight * (1 - smoothing), spread = weight * (smoothing / N);
        for (int k = THREAD; k < N; k += THREADS) gradient[k] = gradient[k] * share - (k == label ? wanted : R(0)) - spread;
        const R chosen = label < 0 ? R(0) : scores[label];
        const double mean = (1 - (double)smoothing) * chosen + (double)smoothing / N * total;
        if (THREAD == 0) g.loss[0] += (double)weight * ((double)best - mean + (double)std::log(sum));
    }
}

template <int N, class LOSS> FUNCTION void errors(Group& g, Array<V, N> scores, Array<V, N> gradient, R number) {
    for (int k = THREAD; k < N; k += THREADS)
        gradient[k] = LOSS::slope(scores[k], g.targets[0][k], number) * g.weight * R(1.0 / N);
    if (THREAD) return;
    R sum = 0;
    for (int k = 0; k < N; k++) sum += LOSS::value(scores[k], g.targets[0][k], number);
    g.loss[0] += (double)g.weight * (double)sum / N;
}
