// Fixed point: bytes times signed bytes, summed in 32 bits without loss; a lane adds four products at once.

typedef int32_t I __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t U __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#include <immintrin.h>
#endif

static inline I words(const void* from) {
    I found;
    memcpy(&found, from, sizeof found);
    return found;
}
static inline I everywhere(const void* from) {
    int32_t word;
    memcpy(&word, from, 4);
    return I{} + word;
}

static inline I four(I sum, I bytes, I weights) {
#if LANES == 16 && defined(__AVX512VNNI__)
    return (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)bytes, (__m512i)weights);
#elif LANES == 8 && defined(__AVXVNNI__)
    return (I)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)bytes, (__m256i)weights);
#else
    for (int b = 0; b < 4; b++) sum += ((bytes >> (8 * b)) & 255) * ((I)((U)weights << (24 - 8 * b)) >> 24);
    return sum;
#endif
}

// Number = (byte - zero) / inverse; what lies beyond the bytes is cut off.
static inline void to_bytes(const float* from, long count, float inverse, float zero, uint8_t* to) {
    for (long k = 0; k < count; k++) {
        float value = from[k] * inverse + zero + 0.5f;
        value = value < 0.f ? 0.f : value;
        to[k] = (uint8_t)(value > 255.f ? 255.f : value);
    }
}

// The first `columns` of sums * scale + shift.
static inline void put(I sum, V scale, V shift, float* to, long columns) {
    V value = __builtin_convertvector(sum, V) * scale + shift;
    if (columns >= LANES)
        store(to, value);
    else if (columns > 0)
        memcpy(to, &value, 4 * columns);
}

// --- dense layers: a block of rows by a panel of outputs ---

template <int R>
static inline void fixed_rows(long rows, const uint8_t* x, long row, const int8_t* panel, const float* scale,
                              const float* shift, float* y, long ldy, long columns) {
    if constexpr (R > 1)
        if (rows < R) return fixed_rows<R - 1>(rows, x, row, panel, scale, shift, y, ldy, columns);
    I sum[R][2] = {};
    for (long k = 0; k < row; k += 4) {
        I left = words(panel + k * PANEL), right = words(panel + k * PANEL + 4 * LANES);
        for (int r = 0; r < R; r++) {
            I bytes = everywhere(x + r * row + k);
            sum[r][0] = four(sum[r][0], bytes, left);
            sum[r][1] = four(sum[r][1], bytes, right);
        }
    }
    for (int r = 0; r < R; r++)
        for (int half = 0; half < 2; half++)
            put(sum[r][half], load(scale + half * LANES), load(shift + half * LANES), y + r * ldy + half * LANES,
                columns - half * LANES);
}

// y[m, n] = x[m, depth] . weights, which lie as [n / PANEL][row / 4][PANEL][4]; `bytes` has room for x, [m, row].
extern "C" void fixed_linear(const float* x, long m, long depth, float inverse, float zero, uint8_t* bytes, long row,
                             const int8_t* panels, long n, const float* scale, const float* shift, float* y,
                             long threads) {
    long blocks = (m + ROWS - 1) / ROWS;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long i = 0; i < m; i++) {
            to_bytes(x + i * depth, depth, inverse, zero, bytes + i * row);
            memset(bytes + i * row + depth, 0, row - depth);
        }
#pragma omp for schedule(static) collapse(2)
        for (long j = 0; j < n; j += PANEL)  // which stays in the first cache while the rows go by
            for (long b = 0; b < blocks; b++) {
                long i = m * b / blocks, some = m * (b + 1) / blocks - i;
                fixed_rows<ROWS>(some, bytes + i * row, row, panels + j * row, scale + j, shift + j, y + i * n + j, n,
                                 n - j);
            }
    }
}

// --- convolutions: a block of filters by vectors of neighbouring pixels ---
//
// Four bytes of a lane are four neighbouring pixels of a channel, or, where there are channels enough, a pixel's bytes in
// four channels, which lie side by side then. `unit` says how many bytes a pixel has: 1 or 4.

#if LANES == 16
#define FILTERS 8
#define TILES 3
#else
#define FILTERS 4
#define TILES 2
#endif

// Four neighbouring bytes for each lane, whose first lie `stride` apart.
static inline I windows(const uint8_t* from, I where, long stride) {
#if LANES == 16 && defined(__AVX512VBMI__)
    if (stride == 4) return words(from);
    if (stride < 4) return (I)_mm512_permutexvar_epi8((__m512i)where, _mm512_loadu_si512(from));
#endif
    (void)where;
    I found;
    for (int l = 0; l < LANES; l++) {
        int32_t word;
        memcpy(&word, from + l * stride, 4);
        found[l] = word;
    }
    return found;
}

// Lines at the end of the room for an image, or for four channels of one, move to where they belong between the rims, which
// is always before.
static void spread(const Shape& S, long unit, long zero, uint8_t* room) {
    long line = unit * S.w, rim = unit * S.pad, width = line + 2 * rim;
    const uint8_t* from = room + (S.h + 2 * S.pad) * width - S.h * line;
    for (long h = 0; h < S.h; h++) {
        uint8_t* to = room + (h + S.pad) * width + rim;
        memmove(to, from + h * line, line);
        memset(to - 2 * rim, (int)zero, 2 * rim);
    }
    memset(room, (int)zero, S.pad * width);
    memset(room + (S.h + S.pad) * width - rim, (int)zero, S.pad * width + rim);
}

// A pixel's bytes in up to four channels, side by side.
static inline I braid(const float* x, long channels, long size, float inverse, float zero) {
    I bytes = I{};
    for (long c = 0; c < channels; c++) {
        V value = load(x + c * size) * inverse + zero + 0.5f;
        value = value < 0.f ? V{} : value;
        value = value > 255.f ? V{} + 255.f : value;
        bytes |= __builtin_convertvector(value, I) << (int)(8 * c);
    }
    return bytes;
}

static void padded_bytes(const Shape& S, long unit, const float* x, long channels, float inverse, long zero,
                         uint8_t* room) {
    long size = S.h * S.w, k = 0;
    uint8_t* to = room + unit * ((S.h + 2 * S.pad) * (S.w + 2 * S.pad) - size);
    if (unit == 1)
        to_bytes(x, size, inverse, (float)zero, to);
    else {
        for (; k + LANES <= size; k += LANES) *(I*)(to + 4 * k) = braid(x + k, channels, size, inverse, (float)zero);
        if (long rest = size - k) {
            float last[4 * LANES] = {};
            for (long c = 0; c < channels; c++) memcpy(last + c * LANES, x + c * size + k, 4 * rest);
            I bytes = braid(last, channels, LANES, inverse, (float)zero);
            memcpy(to + 4 * k, &bytes, 4 * rest);
        }
    }
    if (S.pad) spread(S, unit, zero, room);
}

struct Image {  // padded, in bytes, and what it becomes; lengths in bytes
    const uint8_t* from;
    long plane, width, channels, rows, fours, down, right;
    float* to;
    long p, q;

    long across() const { return (q + LANES - 1) / LANES; }
};

// Filters by tiles, each a vector of neighbouring pixels.
template <int K, int T>
static inline void fixed_tiles(const Image& image, I where, const int8_t* weights, const float* scale,
                               const float* shift, long tile) {
    const uint8_t* from[T];
    float* to[T];
    long columns[T], row = image.channels * image.rows * image.fours * 4;
    for (int t = 0; t < T; t++) {
        long p = (tile + t) / image.across(), q = (tile + t) % image.across() * LANES;
        from[t] = image.from + p * image.down + q * image.right;
        to[t] = image.to + p * image.q + q;
        columns[t] = image.q - q;
    }
    I sum[K][T] = {};
    for (long c = 0; c < image.channels; c++)
        for (long r = 0; r < image.rows; r++)
            for (long g = 0; g < image.fours; g++, weights += 4) {
                long at = c * image.plane + r * image.width + 4 * g;
                I seen[T];
                for (int t = 0; t < T; t++) seen[t] = windows(from[t] + at, where, image.right);
                for (int k = 0; k < K; k++) {
                    I weight = everywhere(weights + k * row);
                    for (int t = 0; t < T; t++) sum[k][t] = four(sum[k][t], seen[t], weight);
                }
            }
    for (int k = 0; k < K; k++)
        for (int t = 0; t < T; t++)
            put(sum[k][t], V{} + scale[k], V{} + shift[k], to[t] + k * image.p * image.q, columns[t]);
}

template <int K>
static inline void fixed_filters(long filters, const Image& image, I where, const int8_t* weights, const float* scale,
                                 const float* shift, long tile, long end) {
    if constexpr (K > 1)
        if (filters < K) return fixed_filters<K - 1>(filters, image, where, weights, scale, shift, tile, end);
    for (; tile + TILES <= end; tile += TILES) fixed_tiles<K, TILES>(image, where, weights, scale, shift, tile);
    for (; tile < end; tile++) fixed_tiles<K, 1>(image, where, weights, scale, shift, tile);
}

// y[n, k, p, q] of x[n, c, h, w] with weights[k][c][r][s / 4][4], or [k][c / 4][r][s][4] where a pixel has four bytes.
// `bytes` has room for the padded images, and for what a vector reads past the last.
extern "C" void fixed_conv(const long* shape, const float* x, float inverse, long zero, long unit, uint8_t* bytes,
                           const int8_t* weights, const float* scale, const float* shift, float* y, long threads) {
    const Shape S = *(const Shape*)shape;
    long width = unit * (S.w + 2 * S.pad), plane = (S.h + 2 * S.pad) * width, right = unit * S.stride;
    long channels = (S.c + unit - 1) / unit, fours = unit == 1 ? (S.s + 3) / 4 : S.s;
    long blocks = (S.k + FILTERS - 1) / FILTERS, row = channels * S.r * fours * 4;
    long parts = S.n < 4 * threads ? 4 * threads : 1;  // of an image, for the threads to share
    uint8_t places[4 * LANES];
    for (int l = 0; l < LANES; l++)
        for (int b = 0; b < 4; b++) places[4 * l + b] = (uint8_t)(l * right + b);
#pragma omp parallel num_threads(threads)
    {
        I where = words(places);
#pragma omp for schedule(static) collapse(2)
        for (long n = 0; n < S.n; n++)
            for (long c = 0; c < channels; c++) {
                long some = S.c - unit * c < unit ? S.c - unit * c : unit;
                padded_bytes(S, unit, x + (n * S.c + unit * c) * S.h * S.w, some, inverse, zero,
                             bytes + (n * channels + c) * plane);
            }
#pragma omp for schedule(static) collapse(2)
        for (long n = 0; n < S.n; n++)
            for (long part = 0; part < parts; part++) {
                Image image = {bytes + n * channels * plane, plane, width, channels, S.r, fours, S.stride * width, right,
                               nullptr, S.p, S.q};
                long tiles = S.p * image.across(), begin = tiles * part / parts, end = tiles * (part + 1) / parts;
                for (long b = 0; b < blocks; b++) {
                    long k = S.k * b / blocks, some = S.k * (b + 1) / blocks - k;
                    image.to = y + (n * S.k + k) * S.p * S.q;
                    fixed_filters<FILTERS>(some, image, where, weights + k * row, scale + k, shift + k, begin, end);
                }
            }
    }
}
