// Numbers, the call of a text, and what a group of samples knows: on any machine.
typedef REAL R;
#if LANES == 1
typedef R V;
#else
typedef R V __attribute__((vector_size(LANES * sizeof(R))));
#endif
#if REPLICAS
typedef V W;
#else
typedef R W;
#endif

// --- what a group of samples knows ---

// What a call leaves of each of its updates: its loss, and when the gradient and the step were made, in nanoseconds of the
// monotonic clock. Where workers sum gradients: when the sum was there, how long it was waited for, and the mean loss.
struct Note {
    double loss;
    int64_t computed, applied;
    int64_t summed, waited;
    double mean;
};

// What scales gradients whose norm is too large; the rest of it is known to those functions (`clip.hpp`).
struct Clipping {
    double (*scale)(Clipping*, const void* gradients);
    void (*clip)(Clipping*, void* gradients);
};

struct Call {
    W* weights;
    W* gradients;      // of each chunk, then of the batch
    V* lane_gradients; // of each chunk
    W* state;          // of the optimizer
    V* arenas;
    const R* x;
    const int64_t* tokens;
    const R* targets;
    const int64_t* labels;
    const int64_t* order;
    const double* settings;
    int64_t* team; // how many items of work were taken, and how many are done
    double* losses; // of each chunk, then the sum over the batches (a number per lane where lanes are replicas)
    const int64_t* seeds; // where lanes are replicas: a seed for each
    const double* rates;  // and the rates of dropout, by layer and lane
    Note* notes;    // of each update of a call; null where the call is none
    int64_t* doing; // the number of the update that a call is in
    Clipping* clipping; // of each update of a call; null where gradients are taken as they are
    void* exchange; // how a call adds its gradients up with other workers; null where it makes updates alone
    int64_t samples, batch, updates, threads, update, seed;
    int64_t first, stride; // of a call: the number of its first update, and how far the next one is
    int64_t chunk;         // of a call: which part of each update it computes
    int64_t pace;          // settings of each update of a call; 0 where all its updates have the same
    int64_t still;         // whether nothing is dropped
};

struct Group {
    V* arena;
    W* weights;
    W* gradient;
    V* lanes;
    const R* rows[LANES];
    const int64_t* tokens[LANES];
    const R* targets[LANES];
    const int64_t* labels[LANES];
    V weight, valid, share;
    R counted; // 1 / how much all classes of the batch count together
    uint32_t position[LANES];
    uint32_t seed;
#if REPLICAS
    uint32_t seeds[LANES];
    const double* rates; // of dropout, by layer and lane
#endif
    double loss[LANES];
    V* first_arena; // of the first group; the others lie behind it
    int64_t number, groups, samples;
    bool still; // nothing is dropped
    bool first; // of its chunk: what it adds to a gradient is all there is so far
};

INLINE uint32_t mixed(uint32_t h) {
    h ^= h >> 16;
    h *= 0x7feb352dU;
    h ^= h >> 15;
    h *= 0x846ca68bU;
    return h ^ (h >> 16);
}

// The seed of an update's dropout.
INLINE uint32_t seed_of(int64_t seed, int64_t turn) {
    return mixed((uint32_t)seed ^ mixed((uint32_t)(seed >> 32) + (uint32_t)turn * 0x9e3779b9U));
}

// 0 or 1 / (1 - rate), a function of seed, layer, place and the sample's number in the batch. Where lanes are copies of the
// model, each has a seed and a rate of its own.
INLINE V kept(const Group& g, uint32_t layer, uint32_t place, R rate) {
    const uint32_t salt = mixed(layer * 0x9e3779b9U + place);
    R out[LANES];
    for (int l = 0; l < LANES; l++) {
#if REPLICAS
        const uint32_t seed = g.seeds[l];
        rate = R(g.rates[layer * LANES + l]);
#else
        const uint32_t seed = g.seed;
#endif
        const uint32_t bound = (uint32_t)((double)rate * 4294967296.0);
        const bool drops = mixed(mixed(seed ^ salt) + g.position[l] * 0x85ebca6bU) < bound;
        out[l] = g.still ? R(1) : drops ? R(0) : R(1) / (R(1) - rate);
    }
    V v;
    std::memcpy(&v, out, sizeof v);
    return v;
}
