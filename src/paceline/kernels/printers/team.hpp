// --- batches, chunks, threads ---

static int64_t groups_of(int64_t samples) { return REPLICAS ? samples : (samples + LANES - 1) / LANES; }

// Whatever the number of threads. Where weights are many, adding chunks up costs as much as a group.
static int64_t chunks_of(int64_t groups) {
    const int64_t chunks = (groups + CHUNK_GROUPS - 1) / CHUNK_GROUPS;
    return chunks < CHUNKS ? chunks : CHUNKS;
}

// 1 / how much the classes of a batch count together: those of all its samples and places.
static R counted(const Call& c, int64_t first, int64_t n) {
    R sum = 0;
    for (int64_t k = first; k < first + n; k++)
        for (int p = 0; p < PLACES; p++) sum += weight_of(c.labels[c.order[k] * PLACES + p]);
    return R(1) / sum;
}

static void prepare(const Call& c, Group& g, int64_t first, int64_t n, int64_t number, int64_t groups, V* arenas, int64_t own) {
    g.number = number;
    g.groups = groups;
    g.samples = n;
    g.first_arena = arenas;
    g.arena = arenas + own * ARENA;
    g.weights = c.weights;
    g.share = all(R(1) / R(n));
    for (int l = 0; l < LANES; l++) {
#if REPLICAS
        const int64_t in_batch = number, place = l * c.samples + first + number;
        const bool real = true;
#else
        const bool real = number * LANES + l < n;
        const int64_t in_batch = real ? number * LANES + l : n - 1, place = first + in_batch;
#endif
        const int64_t sample = c.order[place];
        g.rows[l] = c.x + (TOKENS ? 0 : sample * INPUTS);
        g.tokens[l] = c.tokens + (TOKENS ? sample * INPUTS : 0);
        g.targets[l] = c.targets + sample * OUTPUTS;
        g.position[l] = (uint32_t)in_batch;
        g.loss[l] = 0;
        g.labels[l] = c.labels ? c.labels + sample * PLACES : nullptr;
        set_lane(g.valid, l, real ? R(1) : R(0));
    }
    g.weight = g.valid * g.share;
    g.counted = c.labels ? counted(c, first, n) : R(0);
}

// What update u draws from. Those of a call draw what each would draw alone: a function of seed, update and chunk, as
// algorithms.chance has it. Other calls count their own updates.
static uint32_t seed_of(const Call& c, int64_t seed, int64_t u) {
    if (!c.notes) return seed_of(seed, c.update > 0 ? c.update + u : u);
    uint64_t state = 0x9e3779b97f4a7c15U;
    const int64_t words[] = {seed, c.first + u * c.stride, c.chunk};
    for (int64_t word : words) {
        state = (state ^ (uint64_t)word) * 0xbf58476d1ce4e5b9U;
        state = (state ^ (state >> 27)) * 0x94d049bb133111ebU;
        state ^= state >> 31;
    }
    return mixed((uint32_t)state ^ mixed((uint32_t)(state >> 32) & 0x7fffffffU));
}

// The seeds of what a group draws in update u.
static void begin_draws(const Call& c, Group& g, int64_t u) {
    g.seed = seed_of(c, c.seed, u);
    g.still = c.still;
#if REPLICAS
    for (int l = 0; l < LANES; l++) g.seeds[l] = seed_of(c, c.seeds[l], u);
    g.rates = c.rates;
#endif
}

static void compute(const Call& c, int phase, int64_t first, int64_t n, int64_t chunk, int64_t thread, int64_t u) {
    const int64_t groups = groups_of(n), chunks = chunks_of(groups);
    W* gradient = c.gradients + chunk * NUMBERS;
    V* lanes = c.lane_gradients + chunk * LANE_NUMBERS;
    double* loss = c.losses + chunk * LANES;
    if (phase == 0) {
        begin_chunk(gradient);
        std::memset((void*)lanes, 0, sizeof(V) * LANE_NUMBERS);
        for (int l = 0; l < LANES; l++) loss[l] = 0;
    }
    Group g;
    g.gradient = gradient;
    g.lanes = lanes;
    begin_draws(c, g, u);
    for (int64_t k = chunk * groups / chunks; k < (chunk + 1) * groups / chunks; k++) {
        prepare(c, g, first, n, k, groups, c.arenas, PHASES > 1 ? k : thread);
        g.first = k == chunk * groups / chunks;
        run_phase(phase, g);
        for (int l = 0; l < LANES; l++) loss[l] += g.loss[l];
    }
    if (phase == PHASES - 1) end_chunk(gradient, lanes);
}

// The gradients of all chunks, from this place to that, become one: neighbours first, then neighbours of those.
static void add_chunks(const Call& c, int64_t chunks, int64_t from, int64_t to) {
    for (int64_t step = 1; step < chunks; step *= 2)
        for (int64_t k = 0; k + step < chunks; k += 2 * step) {
            W* __restrict sum = c.gradients + k * NUMBERS;
            const W* __restrict other = c.gradients + (k + step) * NUMBERS;
            for (int64_t q = from; q < to; q++) sum[q] += other[q];
        }
}

// The losses of all chunks become one, in a fixed order.
static void add_losses(const Call& c, int64_t chunks, int64_t u) {
    double whole = 0;
    for (int l = 0; l < LANES; l++) {
        double sum = 0;
        for (int64_t k = 0; k < chunks; k++) sum += c.losses[k * LANES + l];
        c.losses[CHUNKS * LANES + l] += sum;
        whole += sum;
    }
    if (c.notes) c.notes[u].loss = whole, c.notes[u].computed = now();
}

// The work of an update is a row of items: the chunks of each phase, then slices of the weights to be changed. Whoever is
// free takes the next item as soon as all items of the stage before are done. Nobody waits for a thread, only for work: one
// that has no core at the moment, and no item, holds up nobody.
struct Team {
    alignas(64) int64_t taken = 0;
    alignas(64) int64_t done = 0;
};

static void item(const Call& c, int64_t thread, int64_t u, int64_t number, int64_t per_phase) {
    const int64_t first = u * c.batch, n = c.samples - first < c.batch ? c.samples - first : c.batch;
    const int64_t groups = groups_of(n), chunks = chunks_of(groups);
    if (number < PHASES * per_phase) {
        if (number == 0 && c.notes) *c.doing = c.first + u * c.stride;
        const int phase = (int)(number / per_phase);
        if (number % per_phase < chunks) compute(c, phase, first, n, number % per_phase, thread, u);
        return;
    }
    const int64_t slice = number - PHASES * per_phase, parts = (NUMBERS + 63) / 64;
    const int64_t from = slice * parts / SLICES * 64, end = (slice + 1) * parts / SLICES * 64;
    const int64_t to = end < NUMBERS ? end : NUMBERS;
    if (slice == 0) add_losses(c, chunks, u);
    add_chunks(c, chunks, from, to);
    if (c.update >= 0) apply_rule(c, c.settings + u * c.pace, from, to, c.update + u + 1);
    if (slice == SLICES - 1 && c.notes) c.notes[u].applied = now();
}

static void work(const Call& c, int64_t thread, Team& team) {
    FlushDenormals flush;
    const int64_t per_phase = chunks_of(groups_of(c.batch));
    const int64_t per_update = PHASES * per_phase + SLICES;
    for (int64_t spins = 0;;) {
        int64_t next = __atomic_load_n(&team.taken, __ATOMIC_RELAXED);
        if (next >= c.updates * per_update) return;
        const int64_t number = next % per_update, phase = number / per_phase;
        const int64_t ready = next - number + (phase < PHASES ? phase : PHASES) * per_phase;
        if (__atomic_load_n(&team.done, __ATOMIC_ACQUIRE) < ready) {
            wait_a_little(spins++);
            continue;
        }
        if (!__atomic_compare_exchange_n(&team.taken, &next, next + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
        item(c, thread, next / per_update, number, per_phase);
        __atomic_fetch_add(&team.done, 1, __ATOMIC_RELEASE);
        spins = 0;
    }
}

static void work_together(const Call& c) {
    Team& team = *(Team*)c.team;
#ifdef _OPENMP
    if (c.threads > 1) {
#pragma omp parallel num_threads(c.threads)
        work(c, omp_get_thread_num(), team);
        return;
    }
#endif
    work(c, 0, team);
}

// Update by update: the gradient, what is exchanged with other workers, its norm, the step. Ends where that cannot be made.
static void work_one_by_one(const Call& c) {
    for (int64_t u = 0; u < c.updates; u++) {
        Call one = c;
        one.order += u * c.batch;
        one.samples = c.batch < c.samples - u * c.batch ? c.batch : c.samples - u * c.batch;
        one.first += u * c.stride;
        one.notes += u;
        one.updates = 1;
        one.update = -1;
        Exchange* const with = (Exchange*)c.exchange;
        if (with && !with->share) {
            Exchange& e = *with;
            int64_t sums = 0;
            double total = 0;
            for (int64_t k = 0; k < e.chunks; one.order += e.pieces[k++].samples) {
                one.samples = one.batch = e.pieces[k].samples;
                one.chunk = e.pieces[k].chunk;
                *(Team*)c.team = Team{};
                work_together(one);
                if (!add_piece(e, (const R*)c.gradients, k, sums, total, *one.notes)) return;
            }
            if (!exchange(e, (R*)c.gradients, *one.notes)) return;
        } else {
            if (with) offer_weights(*with, (const R*)c.weights);
            *(Team*)c.team = Team{};
            work_together(one);
            if (with && !mix(*with, (R*)c.weights, *one.notes)) return;
        }
        if (c.clipping) c.clipping->clip(c.clipping, c.gradients);
        FlushDenormals flush;
        apply_rule(c, c.settings + u * c.pace, 0, NUMBERS, c.update + u + 1);
        one.notes->applied = now();
    }
}

// Threads of this process, and of all others that were given the same team.
extern "C" void paceline_run(const Call* c) { c->exchange || c->clipping ? work_one_by_one(*c) : work_together(*c); }

// The optimizer's step alone, by gradients that lie with the first chunk.
extern "C" void paceline_apply(const Call* c) {
    FlushDenormals flush;
    apply_rule(*c, c->settings, 0, NUMBERS, c->update + 1);
}

// A step by itself, so many times; everything else once before it. For measuring.
extern "C" void paceline_step(const Call* c, int64_t step, int64_t times) {
    FlushDenormals flush;
    Group g;
    g.gradient = c->gradients;
    g.lanes = c->lane_gradients;
    begin_draws(*c, g, 0);
    prepare(*c, g, 0, REPLICAS ? 1 : LANES, 0, 1, c->arenas, 0);
    g.first = false;
    for (int phase = 0; phase < PHASES; phase++) run_phase(phase, g);
    for (int64_t k = 0; k < times; k++) STEPS[step](g);
}
