// --- batches, chunks, blocks ---

// A block computes a chunk of the batch, sample by sample; there are as many chunks whatever the device has.
FUNCTION void compute(const Call& c, int phase, int64_t update, int64_t chunk, int64_t chunks) {
    const int64_t first = update * c.batch, n = c.samples - first < c.batch ? c.samples - first : c.batch;
    Group g;
    g.gradient = c.gradients + chunk * NUMBERS;
    g.lanes = nullptr;
    const int64_t turn = c.update > 0 ? c.update + update : update;  // whatever was trained in one call
    g.seed = mixed((uint32_t)c.seed ^ mixed((uint32_t)(c.seed >> 32) + (uint32_t)turn * 0x9e3779b9U));
    if (phase == 0) set_to_zero(g.gradient, NUMBERS);
    double loss = 0;
    for (int64_t k = chunk * n / chunks; k < (chunk + 1) * n / chunks; k++) {
        prepare(c, g, first, n, k);
        run_phase(phase, g);
        SYNC;
        loss += g.loss[0];
    }
    if (THREAD == 0) c.losses[chunk] = (phase ? c.losses[chunk] : 0) + loss;
}

// Borders are never written, and stay zero: so is memory that the host gives, but a block's own holds anything.
FUNCTION void clear_own_memory() {
    if (SHARED) set_to_zero((R*)shared_memory, ARENA);
}

// --- a kernel for each phase and one for the change: launched one by one, or many updates captured in a graph ---

KERNEL paceline_phase(const Call* c, int64_t update, int64_t phase) {
    const int64_t chunks = chunks_of(*c, TURN + update);
    clear_own_memory();
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x)
        compute(*c, (int)phase, TURN + update, chunk, chunks);
}

// --- one kernel for many updates, whose blocks wait for each other ---

// All blocks are there at once. The last to come begins the next round; a number that only counts up cannot be mistaken
// for an earlier one.
struct Grid {
    const Call& c;
    __device__ void barrier() const {
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned int* const came = (unsigned int*)(c.team + 1);
            volatile unsigned int* const round = (volatile unsigned int*)(c.team + 2);
            const unsigned int mine = *round;
            __threadfence();
            if (atomicAdd(came, 1u) == gridDim.x - 1) {
                *came = 0;
                __threadfence();
                atomicAdd((unsigned int*)round, 1u);
            } else
                while (*round == mine) __nanosleep(20);
            __threadfence();
        }
        __syncthreads();
    }
};

template <class Blocks> FUNCTION void many(const Call& c, int64_t from, int64_t to, const Blocks& blocks) {
    clear_own_memory();
    for (int64_t update = from; update < to; update++) {
        const int64_t chunks = chunks_of(c, update);
        for (int phase = 0; phase < PHASES; phase++) {
            for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) compute(c, phase, update, chunk, chunks);
            blocks.barrier();
        }
        change(c, update, GRID_THREAD, GRID_THREADS);
        blocks.barrier();
    }
}

KERNEL paceline_updates(const Call* c, int64_t from, int64_t to) { many(*c, from, to, Grid{*c}); }

// The barrier by itself, for a soak.
KERNEL paceline_barriers(const Call* c, int64_t from, int64_t to) {
    for (int64_t k = from; k < to; k++) {
        if (GRID_THREAD == k % GRID_THREADS) c->losses[0] += 1;
        Grid{*c}.barrier();
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
    many(*c, from, to, Cluster{});
}
#endif
