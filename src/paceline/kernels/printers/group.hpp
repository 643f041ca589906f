// --- rows of samples and lanes ---

// Rows of numbers, one per sample, become places with a sample per lane.
template <int SIZE> INLINE void rows_to_lanes(const R* const* rows, int size, Array<V, SIZE> places) {
    int q = 0;
    for (; q + LANES <= size; q += LANES) {
        V square[LANES];
        for (int l = 0; l < LANES; l++) std::memcpy(&square[l], rows[l] + q, sizeof(V));
        exchange(square);
        for (int l = 0; l < LANES; l++) places[q + l] = square[l];
    }
    for (; q < size; q++)
        for (int l = 0; l < LANES; l++) set_lane(places[q], l, rows[l][q]);
}

INLINE void set_to_zero(V* places, int64_t count) { std::memset((void*)places, 0, sizeof(V) * count); }

static __attribute__((noinline)) void take_inputs(Group& g, Array<V, INPUTS> places) {
    rows_to_lanes<INPUTS>(g.rows, INPUTS, places);
}

template <int SIZE, int WIDE> INLINE void copy_rows(Group& g, int from, Array<V, WIDE> target) {
    const Array<R, LANES * WIDE> rows{(R*)address(target)};
    for (int l = 0; l < LANES; l++) {
        std::memcpy(address(part<SIZE>(rows, l * WIDE)), g.rows[l] + from, sizeof(R) * SIZE);
        for (int q = SIZE; q < WIDE; q++) rows[l * WIDE + q] = 0;
    }
}

// Places with a sample per lane become rows, padded with zeros to whole vectors.
template <int SIZE, int WIDE> INLINE void turn(Array<V, SIZE> places, Array<V, WIDE> target) {
    const Array<R, LANES * WIDE> rows{(R*)address(target)};
    for (int q = 0; q < WIDE; q += LANES) {
        V square[LANES];
        for (int l = 0; l < LANES; l++) square[l] = q + l < SIZE ? places[q + l] : V{};
        exchange(square);
        for (int l = 0; l < LANES; l++) std::memcpy(address(part<LANES>(rows, l * WIDE + q)), &square[l], sizeof(V));
    }
}

// --- sums over the samples of a batch ---

#if REPLICAS
INLINE V group_sum(V v, int64_t, int64_t) { return v; }
INLINE V first_lane(V v) { return v; }
#else
INLINE R group_sum(V v, int64_t group, int64_t samples) {
    for (int l = 0; l < LANES; l++)
        if (group * LANES + l >= samples) set_lane(v, l, 0);
    return sum_of_lanes(v);
}
INLINE R first_lane(V v) { return lane(v, 0); }
#endif

// --- losses, with their gradients by the scores ---

template <int N> INLINE void cross_entropy(Group& g, Array<V, N * PLACES> every, Array<V, N * PLACES> slopes, R smoothing) {
    for (int p = 0; p < PLACES; p++) {
        const Array<V, N> scores = part<N>(every, p * N), gradient = part<N>(slopes, p * N);
        V label, weight;
        for (int l = 0; l < LANES; l++) {
            set_lane(label, l, R(g.labels[l][p]));
            set_lane(weight, l, weight_of(g.labels[l][p]));
        }
        weight *= g.valid * g.counted;
        V best = scores[0];
        for (int k = 1; k < N; k++) best = larger(scores[k], best);
        V sum = V{}, chosen = V{}, total = V{};
        for (int k = 0; k < N; k++) {
            const V power = exp_(scores[k] - best);
            gradient[k] = power;
            sum += power;
            chosen += label == all(R(k)) ? scores[k] : V{};
            total += scores[k];
        }
        const V share = weight / sum, wanted = weight * (1 - smoothing), spread = weight * (smoothing / N);
        for (int k = 0; k < N; k++) gradient[k] = gradient[k] * share - (label == all(R(k)) ? wanted : V{}) - spread;
        for (int l = 0; l < LANES; l++) {
            const double mean = (1 - (double)smoothing) * lane(chosen, l) + (double)smoothing / N * lane(total, l);
            g.loss[l] += (double)lane(weight, l) * ((double)lane(best, l) - mean + std::log((double)lane(sum, l)));
        }
    }
}

template <int N, class LOSS> INLINE void errors(Group& g, Array<V, N> scores, Array<V, N> gradient, R number) {
    V sum = V{};
    for (int first = 0; first < N; first += LANES) {
        const int count = N - first < LANES ? N - first : LANES;
        const R* rows[LANES];
        V wanted[LANES];
        for (int l = 0; l < LANES; l++) rows[l] = g.targets[l] + first;
        rows_to_lanes<LANES>(rows, count, Array<V, LANES>{wanted});
        for (int k = 0; k < count; k++) {
            sum += LOSS::value(scores[first + k], wanted[k], number);
            gradient[first + k] = LOSS::slope(scores[first + k], wanted[k], number) * g.weight * R(1.0 / N);
        }
    }
    for (int l = 0; l < LANES; l++) g.loss[l] += (double)lane(g.weight, l) * (double)lane(sum, l) / N;
}
