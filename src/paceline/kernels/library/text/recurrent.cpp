// Stacked LSTM layers, time first: x[t, b, i] -> h[l, t, b, u]. The four gates of a step are one product, and what
// follows them one pass.

struct Stack {
    long t, b, i, u, l;
};

struct Layer {
    const float *in, *back, *bias_in, *bias_back;  // [4u, i or u], [4u, u], [4u]; gates in the order i, f, g, o
    float* bias;                     // the sum of both
    float *gates, *cell, *out;       // [t, b, 4u] after their functions; [t, b, u]; [t, b, u]
    float *panels, *panels_back;     // of `in` and `back`, as the products of the way there, or back, want them
    float *dgates, *dinput;          // the way back: [t, b, 4u], [t, b, i or u]
    float *din, *dback, *dbias;      // sums over time
};

static inline V exponential(V x) {
    const V high = V{} + 88.f, low = V{} - 87.f;
    x = x > high ? high : x;
    x = x < low ? low : x;
    const float magic = 12582912.f;  // adding it rounds to a whole number
    V whole = x * 1.44269504f + magic;
    I bits = (I)whole << 23;
    whole -= magic;
    V rest = x - whole * 0.693359375f;
    rest += whole * 2.12194440e-4f;
    V sum = V{} + 1.f / 720;
    sum = sum * rest + 1.f / 120;
    sum = sum * rest + 1.f / 24;
    sum = sum * rest + 1.f / 6;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.f;
    sum = sum * rest + 1.f;
    return (V)((I)sum + bits);
}

static inline V sigmoid(V x) { return 1.f / (1.f + exponential(-x)); }
static inline V hyperbolic(V x) { return 2.f / (1.f + exponential(-2.f * x)) - 1.f; }

// A loop over units, in whole vectors and a rest that goes through a vector of its own.
template <class F>
static inline void units(long u, F each) {
    for (long j = 0; j < u; j += LANES) each(j, u - j < LANES ? u - j : LANES);
}
static inline V some(const float* from, long count) {
    if (count == LANES) return load(from);
    V found = V{};
    for (long l = 0; l < count; l++) found[l] = from[l];
    return found;
}
static inline void keep(float* to, V value, long count) {
    if (count == LANES) store(to, value);
    else
        for (long l = 0; l < count; l++) to[l] = value[l];
}

static inline long width(const Stack& S, long l) { return l ? S.u : S.i; }

#define TOGETHER 4  // steps of a wavefront's block, whose inputs are projected together

// What the inputs of steps `from` to `to` are to the gates of a layer.
static void project(const Stack& S, const Layer* layers, const float* x, long l, long from, long to) {
    const Layer& L = layers[l];
    long rows = (to - from) * S.b, four = 4 * S.u, wide = width(S, l);
    const float* below = (l ? layers[l - 1].out : x) + from * S.b * wide;
    float* gates = L.gates + from * S.b * four;
    product(rows, four, wide, below, wide, 1, L.panels, gates, four, false);
}

// The way back of the same.
static void project_back(const Stack& S, const Layer& L, long wide, long from, long to) {
    long rows = (to - from) * S.b, four = 4 * S.u;
    const float* dgates = L.dgates + from * S.b * four;
    float* dinput = L.dinput + from * S.b * wide;
    product(rows, wide, four, dgates, four, 1, L.panels, dinput, wide, false);
}

// Rows `from` to `to` of the batch, one step of one layer, whose inputs are projected.
static void step(const Stack& S, const Layer* layers, long l, long t, long from, long to) {
    const Layer& L = layers[l];
    long four = 4 * S.u, rows = to - from;
    float* gates = L.gates + (t * S.b + from) * four;
    const float* before = L.out + ((t - 1) * S.b + from) * S.u;
    if (t) product(rows, four, S.u, before, S.u, 1, L.panels_back, gates, four, true);
    for (long b = 0; b < rows; b++) {
        float* g = gates + b * four;
        float *cell = L.cell + (t * S.b + from + b) * S.u, *out = L.out + (t * S.b + from + b) * S.u;
        const float* last = cell - S.b * S.u;
        units(S.u, [&](long j, long n) {
            V i = sigmoid(some(g + j, n) + some(L.bias + j, n));
            V f = sigmoid(some(g + S.u + j, n) + some(L.bias + S.u + j, n));
            V m = hyperbolic(some(g + 2 * S.u + j, n) + some(L.bias + 2 * S.u + j, n));
            V o = sigmoid(some(g + 3 * S.u + j, n) + some(L.bias + 3 * S.u + j, n));
            V c = i * m + (t ? f * some(last + j, n) : V{});
            keep(g + j, i, n), keep(g + S.u + j, f, n), keep(g + 2 * S.u + j, m, n), keep(g + 3 * S.u + j, o, n);
            keep(cell + j, c, n);
            keep(out + j, o * hyperbolic(c), n);
        });
    }
}

// The way back through one step. dout: [t, b, u], what the loss says of the top layer's outputs.
static void step_back(const Stack& S, const Layer* layers, const float* dout, long l, long t, long from, long to,
                      float* dh, float* dcell) {
    const Layer& L = layers[l];
    long four = 4 * S.u, rows = to - from;
    const float* above = (l + 1 < S.l ? layers[l + 1].dinput : dout) + (t * S.b + from) * S.u;
    float* dgates = L.dgates + (t * S.b + from) * four;
    bool last = t + 1 == S.t;
    // what the next step of this layer says of these outputs
    const float* after = L.dgates + ((t + 1) * S.b + from) * four;
    if (!last) product(rows, S.u, four, after, four, 1, L.panels_back, dh + from * S.u, S.u, false);
    for (long b = 0; b < rows; b++) {
        const float *g = L.gates + (t * S.b + from + b) * four, *cell = L.cell + (t * S.b + from + b) * S.u;
        float *d = dgates + b * four, *dc = dcell + (from + b) * S.u;
        units(S.u, [&](long j, long n) {
            V i = some(g + j, n), f = some(g + S.u + j, n), m = some(g + 2 * S.u + j, n), o = some(g + 3 * S.u + j, n);
            V c = hyperbolic(some(cell + j, n));
            V down = some(above + b * S.u + j, n) + (last ? V{} : some(dh + (from + b) * S.u + j, n));
            V slope = down * o * (1.f - c * c) + (last ? V{} : some(dc + j, n));
            V former = t ? some(cell - S.b * S.u + j, n) : V{};
            keep(d + j, slope * m * i * (1.f - i), n);
            keep(d + S.u + j, slope * former * f * (1.f - f), n);
            keep(d + 2 * S.u + j, slope * i * (1.f - m * m), n);
            keep(d + 3 * S.u + j, down * c * o * (1.f - o), n);
            keep(dc + j, slope * f, n);
        });
    }
}

// Weights as panels, by all threads, which go on; of a matrix whose rows are read, or whose columns are.
static void pack_all(const float* w, bool rows, long n, long depth, float* panels) {
    long columns = rows ? n : depth, deep = rows ? depth : n;
#pragma omp for schedule(static) nowait
    for (long j = 0; j < columns; j += PANEL) {
        long many = columns - j < PANEL ? columns - j : PANEL;
        if (rows)
            pack(w + j * depth, 1, depth, deep, many, panels + j * deep);
        else
            pack(w + j, depth, 1, deep, many, panels + j * deep);
    }
}

static void pack_layers(const Stack& S, const Layer* layers, bool rows, long threads) {
#pragma omp parallel num_threads(threads)
    for (long l = 0; l < S.l; l++) {
        pack_all(layers[l].in, rows, 4 * S.u, width(S, l), layers[l].panels);
        pack_all(layers[l].back, rows, 4 * S.u, S.u, layers[l].panels_back);
    }
}

// Layer l of block d - l, of several steps, is done by thread l modulo threads, when the layer before has done that block:
// `progress`. A block's inputs are projected together.
template <class F>
static void wavefront(const Stack& S, long threads, F each) {
    long blocks = (S.t + TOGETHER - 1) / TOGETHER;
    long* progress = new long[S.l * 8]();  // a cache line each
#pragma omp parallel num_threads(threads)
    {
        long me = omp_get_thread_num(), all = omp_get_num_threads();
        for (long d = 0; d < blocks + S.l - 1; d++)
            for (long l = me; l < S.l; l += all) {
                long block = d - l, from = block * TOGETHER;
                if (block < 0 || block >= blocks) continue;
                if (l)
                    for (long spun = 0; __atomic_load_n(progress + (l - 1) * 8, __ATOMIC_ACQUIRE) <= block; spun++)
                        if (spun > 2000) {
#pragma omp taskyield
                            sched_yield();
                        }
                each(l, from, from + TOGETHER < S.t ? from + TOGETHER : S.t);
                __atomic_store_n(progress + l * 8, block + 1, __ATOMIC_RELEASE);
            }
    }
    delete[] progress;
}

extern "C" void lstm(const Stack* stack, const Layer* layers, const float* x, long in_wavefront, long threads) {
    const Stack S = *stack;
    pack_layers(S, layers, true, threads);
    for (long l = 0; l < S.l; l++)
        for (long j = 0; j < 4 * S.u; j++) layers[l].bias[j] = layers[l].bias_in[j] + layers[l].bias_back[j];
    if (in_wavefront) {
        wavefront(S, threads, [&](long l, long from, long to) {
            project(S, layers, x, l, from, to);
            for (long t = from; t < to; t++) step(S, layers, l, t, 0, S.b);
        });
        return;
    }
#pragma omp parallel num_threads(threads)
    for (long l = 0; l < S.l; l++) {
        long me = omp_get_thread_num(), all = omp_get_num_threads();
        long each = (S.t + all - 1) / all, fine = 4 * ROWS / S.b, part = fine < 1 ? 1 : fine < each ? fine : each;
#pragma omp for schedule(static)
        for (long t = 0; t < S.t; t += part)  // the inputs of all steps are there
            project(S, layers, x, l, t, t + part < S.t ? t + part : S.t);
        for (long t = 0; t < S.t; t++)
            if (S.b * me / all < S.b * (me + 1) / all) step(S, layers, l, t, S.b * me / all, S.b * (me + 1) / all);
#pragma omp barrier
    }
}

// dh and dcell: [l, b, u] of room.
extern "C" void lstm_back(const Stack* stack, const Layer* layers, const float* x, const float* dout, float* dh,
                          float* dcell, float* room, long in_wavefront, long threads) {
    const Stack S = *stack;
    long four = 4 * S.u, size = S.b * S.u;
    pack_layers(S, layers, false, threads);
    if (in_wavefront)
        wavefront(S, threads, [&](long turned, long first, long last) {
            long l = S.l - 1 - turned;
            for (long t = S.t - 1 - first; t >= S.t - last; t--)
                step_back(S, layers, dout, l, t, 0, S.b, dh + l * size, dcell + l * size);
            project_back(S, layers[l], width(S, l), S.t - last, S.t - first);
        });
    else
#pragma omp parallel num_threads(threads)
    {
        long me = omp_get_thread_num(), all = omp_get_num_threads();
        for (long l = S.l - 1; l >= 0; l--) {
            for (long t = S.t - 1; t >= 0; t--)
                if (S.b * me / all < S.b * (me + 1) / all)
                    step_back(S, layers, dout, l, t, S.b * me / all, S.b * (me + 1) / all, dh + l * size,
                              dcell + l * size);
            long each = (S.t + all - 1) / all;
#pragma omp barrier
#pragma omp for schedule(static)
            for (long t = 0; t < S.t; t += each)
                project_back(S, layers[l], width(S, l), t, t + each < S.t ? t + each : S.t);
        }
    }
    // Sums over time, which nobody waits for. room: panels of the inputs of one layer, then of its outputs.
    for (long l = 0; l < S.l; l++) {
        const Layer& L = layers[l];
        long rows = S.t * S.b, wide = width(S, l), past = (S.t - 1) * S.b;
        float* outputs = room + rows * rounded(wide, PANEL);
        pack(l ? layers[l - 1].out : x, wide, 1, rows, wide, room);
        pack(L.out, S.u, 1, past, S.u, outputs);
        if (!past) memset(L.dback, 0, 4 * four * S.u);
#pragma omp parallel for num_threads(threads) schedule(static)
        for (long i = 0; i < four; i += ROWS) {
            long many = four - i < ROWS ? four - i : ROWS;
            product(many, wide, rows, L.dgates + i, 1, four, room, L.din + i * wide, wide, false);
            if (past)
                product(many, S.u, past, L.dgates + S.b * four + i, 1, four, outputs, L.dback + i * S.u, S.u, false);
            float sums[ROWS] = {};
            for (long r = 0; r < rows; r++)
                for (long j = 0; j < many; j++) sums[j] += L.dgates[r * four + i + j];
            memcpy(L.dbias + i, sums, 4 * many);
        }
    }
}
