// --- batches, chunks, blocks ---

// A block computes a chunk of the batch, sample by sample; there are as many chunks whatever the device has.
FUNCTION void compute(const Call& c, int phase, int64_t update, int64_t chunk, int64_t chunks) {
    const int64_t first = update * c.batch, n = c.samples - first < c.batch ? c.samples - first : c.batch;
    const int64_t begin = n == chunks ? chunk : chunk * n / chunks, end = n == chunks ? chunk + 1 : (chunk + 1) * n / chunks;
    R* const gradient = in_device(c.gradients) + chunk * NUMBERS;
    Group g;
    g.gradient = OWN_WEIGHTS ? OWN_PLACE + OWN_NUMBERS * ARENA + NUMBERS : gradient;
    g.lanes = nullptr;
    const int64_t turn = c.update > 0 ? c.update + update : update;  // whatever was trained in one call
    g.seed = seed_of(c.seed, turn);
    if (phase == 0) set_to_zero(g.gradient, NUMBERS);
    double loss = 0;
    for (int64_t k = begin; k < end; k++) {
        prepare(c, g, first, n, k);
        run_phase(phase, g);
        SYNC;
        loss += g.loss[0];
    }
    if (OWN_WEIGHTS) copy(g.gradient, gradient, NUMBERS);
    if (THREAD == 0) c.losses[chunk] = (phase ? c.losses[chunk] : 0) + loss;
}

static_assert(sizeof(Call) <= OWN_CALL, "room for the call");

// The call comes near. Borders are never written, and stay zero: so is memory that the host gives, but a block's own
// holds anything.
FUNCTION const Call& begin(const Call* c) {
    Call* const near = (Call*)shared_memory;
    for (int q = THREAD; q < (int)(sizeof(Call) / 8); q += THREADS) ((int64_t*)near)[q] = ((const int64_t*)c)[q];
    if (OWN_NUMBERS) set_to_zero(OWN_PLACE, ARENA);
    SYNC;
    return *near;
}

// As the last update left them.
FUNCTION void take_weights(const Call& c) {
    if (OWN_WEIGHTS) copy(in_device(c.weights), OWN_PLACE + OWN_NUMBERS * ARENA, NUMBERS);
}

// --- a kernel for each phase and one for the change: launched one by one, or many updates captured in a graph ---

KERNEL paceline_phase(const Call* call, int64_t update, int64_t phase) {
    const Call& c = begin(call);
    const int64_t turn = c.team[0] + update, chunks = chunks_of(c, turn);
    take_weights(c);
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) compute(c, (int)phase, turn, chunk, chunks);
}

// --- one kernel for many updates, whose blocks wait for each other ---

#define PATIENCE (1LL << 29)  // looks at the number, minutes of them

// All blocks are there at once. What they count only grows, so it cannot be mistaken for an earlier barrier's: each waits
// until all have come that have to come by then. A launch begins with whole barriers behind it.
struct Grid {
    unsigned long long* const came;
    unsigned long long all;
    __device__ explicit Grid(const Call* c) : came((unsigned long long*)(c->team + 1)), all(looked()) {
        all -= all % gridDim.x;
    }
    __device__ unsigned long long looked() const { return *(volatile unsigned long long*)came; }
    __device__ void barrier() {
        all += gridDim.x;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(came, 1ULL);
            for (int64_t k = 0; looked() < all; k++) {
                if (k == PATIENCE) __trap();  // rather an error than a device that hangs
                __nanosleep(20);
            }
            __threadfence();
        }
        __syncthreads();
    }
};

template <class Blocks> FUNCTION void many(const Call* call, int64_t from, int64_t to, Blocks blocks) {
    const Call& c = begin(call);
    for (int64_t update = from; update < to; update++) {
        const int64_t chunks = chunks_of(c, update);
        take_weights(c);
        for (int phase = 0; phase < PHASES; phase++) {
            for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) compute(c, phase, update, chunk, chunks);
            blocks.barrier();
        }
        change(c, update, SPREAD_THREAD, GRID_THREADS);
        blocks.barrier();
    }
}

KERNEL paceline_updates(const Call* c, int64_t from, int64_t to) { many(c, from, to, Grid(c)); }

// The barrier by itself, for a soak.
KERNEL paceline_barriers(const Call* c, int64_t from, int64_t to) {
    Grid grid(c);
    for (int64_t k = from; k < to; k++) {
        if (GRID_THREAD == k % GRID_THREADS) c->losses[0] += 1;
        grid.barrier();
    }
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// A cluster of blocks, near each other, whose barrier is the device's own.
struct Cluster {
    __device__ void barrier() const {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    }
};

KERNEL paceline_updates_of_cluster(const Call* c, int64_t from, int64_t to) {
    many(c, from, to, Cluster{});
}
#endif
