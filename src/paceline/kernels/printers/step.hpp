// --- the optimizer's step of one parameter: a block at a time, which stays in the nearest cache ---

enum { HIGH_ACCURACY = 0x2, KEEP_DENORMALS = 0x140000, NO_ERRORS = 0x100 };

// A parameter: its newest values and where the new ones go, what the optimizer and the rule remember of both, how many steps
// were made, the gradient, and the values that it was computed from. Gradient, pulled and own values lie in padded rows.
struct Numbers {
    const R* old;
    R* fresh;
    const R* remembered[2];
    R* kept[2];
    const float* counted;
    float* counting;
    const R* noted;
    R* noting;
    const R *gradient, *pulled;
    R* own; // where a worker computes with the new values; null where that is `fresh`
    int64_t rows, width, stride;
    int64_t group, present;
    int64_t shared; // whether other cores read the new values and what is remembered of them
};

// PyTorch's own square root, which on some processors is not the correctly rounded one; null where it is.
static void (*torch_root)(int, const R*, R*, int64_t) = nullptr;
extern "C" void paceline_roots(void* function) { torch_root = (decltype(torch_root))function; }

static inline void take_roots(R* x, int64_t size) {
    if (torch_root) return torch_root((int)size, x, x, HIGH_ACCURACY | KEEP_DENORMALS | NO_ERRORS);
    for (int64_t q = 0; q < size; q++) x[q] = std::sqrt(x[q]);
}

static inline void scatter(const Numbers& n, const R* from_block, int64_t from, int64_t size) {
    by_rows(n, from, size, [&](int64_t q, int64_t at, int64_t some) {
        std::memcpy(n.own + at, from_block + q, sizeof(R) * some);
    });
}

#ifdef __clang__
#define EACH _Pragma("clang loop vectorize(assume_safety)")
#else
#define EACH _Pragma("GCC ivdep")
#endif
