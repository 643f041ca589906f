// --- numbers that lie in padded rows, a block at a time ---

enum { BLOCK = 512 }; // numbers that stay in the nearest cache

// Calls with each run of numbers that lie side by side: where it is in the block, where in padded rows, how long it is.
template <class P, class F> static inline void by_rows(const P& p, int64_t from, int64_t size, F call) {
    for (int64_t q = 0; q < size;) {
        const int64_t row = (from + q) / p.width, column = (from + q) % p.width;
        const int64_t left = p.width - column, some = left < size - q ? left : size - q;
        call(q, row * p.stride + column, some);
        q += some;
    }
}

template <class R, class P>
static inline void gather(const P& p, const R* padded, R scale, int64_t from, int64_t size, R* __restrict to) {
    by_rows(p, from, size, [&](int64_t q, int64_t at, int64_t some) {
        for (int64_t k = 0; k < some; k++) to[q + k] = padded[at + k] * scale;
    });
}
