// --- a gradient whose norm is too large, scaled as PyTorch scales it ---

// A parameter's rows in padded memory.
struct Place {
    int64_t to, from, rows, width, stride;
};

struct Clipping {
    double (*scale)(Clipping*, const void*); // returns what a gradient is to be multiplied by
    void (*clip)(Clipping*, void*);          // multiplies it
    const Place* places;
    R* norms;      // of each parameter
    int64_t count; // of parameters
    int64_t way;      // in which PyTorch sums squares here
    double limit;
    double norm; // of the last gradient
};

static inline R add_square(R sum, R x, bool fused) { return fused ? std::fma(x, x, sum) : sum + x * x; }

// PyTorch sums squares in the lanes of a vector, then the lanes, then what is left: by FMA or not, as it was compiled.
// Of what is left, compilers square so many at once as make another vector, and only the others by FMA.
template <int LANES, bool FUSED, int SQUARED> static R norm(const R* padded, const Place& p) {
    R lanes[LANES] = {}, block[BLOCK];
    const int64_t count = p.rows * p.width;
    int64_t size = 0, q = 0;
    for (int64_t from = 0; from < count; from += BLOCK) {
        size = count - from < BLOCK ? count - from : BLOCK;
        gather(p, padded, R(1), from, size, block);
        for (q = 0; q + LANES <= size; q += LANES)
            for (int l = 0; l < LANES; l++) lanes[l] = add_square(lanes[l], block[q + l], FUSED);
    }
    R sum = lanes[0];
    for (int l = 1; l < LANES; l++) sum += lanes[l];
    for (const int64_t end = q + (SQUARED ? (size - q) / SQUARED * SQUARED : 0); q < end; q++)
        sum = add_square(sum, block[q], false);
    for (; q < size; q++) sum = add_square(sum, block[q], true);
    return std::sqrt(sum);
}

#define SUMS(lanes, fused) norm<lanes, fused, 16 / sizeof(R)>, norm<lanes, fused, 0>, norm<lanes, fused, 1>
#define BYTES(n) SUMS(n / sizeof(R), false), SUMS(n / sizeof(R), true)
static R (*const WAYS[])(const R*, const Place&) = {BYTES(32), BYTES(64), BYTES(16)};
extern "C" const int64_t paceline_ways = sizeof WAYS / sizeof *WAYS;

extern "C" double paceline_norm(int64_t way, const R* x, int64_t count) {
    return WAYS[way](x, Place{0, 0, 1, count, count});
}

extern "C" double paceline_scale(Clipping* c, const void* gradients) {
    for (int64_t k = 0; k < c->count; k++)
        c->norms[k] = WAYS[c->way]((const R*)gradients + c->places[k].from, c->places[k]);
    const R total = R(paceline_norm(c->way, c->norms, c->count));
    const R scale = R(1) / (total + R(1e-6)) * R(c->limit);
    c->norm = total;
    return scale > 1 ? 1.0 : scale;
}

extern "C" void paceline_clip(Clipping* c, void* gradients) {
    const R scale = R(c->scale(c, gradients));
    for (const Place* p = c->places; p < c->places + c->count; p++)
        for (int64_t row = 0; row < p->rows; row++)
            for (int64_t q = 0; q < p->width; q++) ((R*)gradients)[p->from + row * p->stride + q] *= scale;
}
