// Vectors as wide as the machine's, and the block of a matrix product that stays in registers.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <sched.h>
#include <utility>
#ifdef _OPENMP
#include <omp.h>
#else  // a compiler without it makes one thread of every team
static inline int omp_get_thread_num() { return 0; }
static inline int omp_get_num_threads() { return 1; }
#endif

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 12
#elif defined(__AVX__)
#define LANES 8
#define ROWS 6
#else
#define LANES 4
#define ROWS 8
#endif
#define PANEL (2 * LANES)  // columns of a packed panel
#define LINE (ROWS / 3)    // panels of a single row

typedef float V __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline V load(const float* from) { return *(const V*)from; }
static inline void store(float* to, V value) { *(V*)to = value; }
static inline long rounded(long n, long to) { return (n + to - 1) / to * to; }

// c[R x PANEL] = (or +=) a[R x depth] . panel[depth x PANEL]; a has any strides, only `columns` of c are there.
template <int R>
static inline void block(const float* a, long row, long step, const float* panel, long depth, float* c, long ldc,
                         long columns, bool add) {
    V sum[R][2];
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = V{};
    for (long k = 0; k < depth; k++) {
        V left = load(panel + k * PANEL), right = load(panel + k * PANEL + LANES);
        for (int r = 0; r < R; r++) {
            float scalar = a[r * row + k * step];
            sum[r][0] += scalar * left;
            sum[r][1] += scalar * right;
        }
    }
    for (int r = 0; r < R; r++) {
        float* to = c + r * ldc;
        if (columns >= PANEL) {
            store(to, add ? load(to) + sum[r][0] : sum[r][0]);
            store(to + LANES, add ? load(to + LANES) + sum[r][1] : sum[r][1]);
        } else {
            float row_of[PANEL];
            store(row_of, sum[r][0]);
            store(row_of + LANES, sum[r][1]);
            for (long j = 0; j < columns; j++) to[j] = add ? to[j] + row_of[j] : row_of[j];
        }
    }
}

template <int R>
static inline void some_rows(long rows, const float* a, long row, long step, const float* panel, long depth, float* c,
                             long ldc, long columns, bool add) {
    if (rows == R)
        block<R>(a, row, step, panel, depth, c, ldc, columns, add);
    else if constexpr (R > 1)
        some_rows<R - 1>(rows, a, row, step, panel, depth, c, ldc, columns, add);
}

// Of a single row, several panels at once: one alone would wait for its own sums.
template <int P>
static inline void line(const float* a, long step, const float* panels, long apart, long depth, float* c, bool add) {
    V sum[2 * P] = {};
    for (long k = 0; k < depth; k++)
        for (int p = 0; p < 2 * P; p++)
            sum[p] += a[k * step] * load(panels + p / 2 * apart + k * PANEL + p % 2 * LANES);
    for (int p = 0; p < 2 * P; p++) store(c + p * LANES, add ? load(c + p * LANES) + sum[p] : sum[p]);
}

// c[rows x columns] = (or +=) a . panels, packed one after the other; row blocks stay, panels go by.
static void product(long rows, long columns, long depth, const float* a, long row, long step, const float* panels,
                    float* c, long ldc, bool add) {
    const long DEPTH = 256;  // of a panel that stays in the first cache
    for (long from = 0; from < depth; from += DEPTH) {
        long deep = depth - from < DEPTH ? depth - from : DEPTH;
        for (long i = 0; i < rows; i += ROWS) {
            long some = rows - i < ROWS ? rows - i : ROWS, j = 0;
            for (; some == 1 && j + LINE * PANEL <= columns; j += LINE * PANEL)
                line<LINE>(a + i * row + from * step, step, panels + j * depth + from * PANEL, PANEL * depth, deep,
                           c + i * ldc + j, add || from > 0);
            for (; j < columns; j += PANEL)
                some_rows<ROWS>(some, a + i * row + from * step, row, step, panels + j * depth + from * PANEL, deep,
                                c + i * ldc + j, ldc, columns - j, add || from > 0);
        }
    }
}

// A square turned about its diagonal, in as many rounds as its side has bits.
template <int S, int... L>
static inline void exchanged(V& a, V& b, std::integer_sequence<int, L...>) {
    V one = __builtin_shufflevector(a, b, (L & S ? L - S + LANES : L)...);
    b = __builtin_shufflevector(a, b, (L & S ? L + LANES : L + S)...);
    a = one;
}
template <int S = 1>
static inline void turn(V* square) {
    for (int i = 0; i < LANES; i++)
        if (!(i & S)) exchanged<S>(square[i], square[i + S], std::make_integer_sequence<int, LANES>());
    if constexpr (2 * S < LANES) turn<2 * S>(square);
}

// b[depth x columns], of any strides, as panels.
static void pack(const float* b, long row, long step, long depth, long columns, float* panels) {
    for (long j = 0; j < columns; j += PANEL) {
        long some = columns - j < PANEL ? columns - j : PANEL, k = 0;
        float* to = panels + j * depth;
        for (; row == 1 && some == PANEL && k + LANES <= depth; k += LANES)
            for (int half = 0; half < PANEL; half += LANES) {
                V square[LANES];
                for (int l = 0; l < LANES; l++) square[l] = load(b + k + (j + half + l) * step);
                turn(square);
                for (int l = 0; l < LANES; l++) store(to + (k + l) * PANEL + half, square[l]);
            }
        for (; k < depth; k++)
            for (long l = 0; l < PANEL; l++) to[k * PANEL + l] = l < some ? b[k * row + (j + l) * step] : 0.f;
    }
}
