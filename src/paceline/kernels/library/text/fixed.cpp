// Fixed point: y[m, n] = x[m, depth] . weights[n, depth]: bytes times signed bytes, summed in 32 bits without loss.

typedef int32_t I __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#if defined(__AVX512VNNI__)
#include <immintrin.h>
// Each lane adds four products of bytes.
static inline I four(I sum, int32_t bytes, const int8_t* weights) {
    return (I)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(bytes), _mm512_loadu_si512(weights));
}
#else
static inline I four(I sum, int32_t bytes, const int8_t* weights) {
    const uint8_t* x = (const uint8_t*)&bytes;
    for (int l = 0; l < LANES; l++)
        for (int b = 0; b < 4; b++) sum[l] += (int32_t)x[b] * weights[4 * l + b];
    return sum;
}
#endif

// [n, depth] as [n / LANES][depth / 4][LANES][4], with noughts at the rims.
extern "C" void fixed_pack(const int8_t* weights, long n, long depth, int8_t* packed) {
    long fours = rounded(depth, 4) / 4;
    for (long j = 0; j < rounded(n, LANES); j++)
        for (long k = 0; k < rounded(depth, 4); k++)
            packed[((j / LANES * fours + k / 4) * LANES + j % LANES) * 4 + k % 4] =
                j < n && k < depth ? weights[j * depth + k] : 0;
}

template <int R, int C>
static inline void fixed_block(const uint8_t* x, long row, const int8_t* packed, long fours, int32_t* y, long ldy,
                               long columns) {
    I sum[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sum[r][c] = I{};
    for (long k = 0; k < fours; k++)
        for (int r = 0; r < R; r++) {
            int32_t bytes;
            memcpy(&bytes, x + r * row + 4 * k, 4);
            for (int c = 0; c < C; c++) sum[r][c] = four(sum[r][c], bytes, packed + (c * fours + k) * LANES * 4);
        }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            if (c * LANES < columns) {
                long some = columns - c * LANES < LANES ? columns - c * LANES : LANES;
                memcpy(y + r * ldy + c * LANES, &sum[r][c], 4 * some);
            }
}

// The rows of x are `row` bytes long, a multiple of four, and noughts follow the depth.
extern "C" void fixed_product(const uint8_t* x, long m, long row, const int8_t* packed, long n, int32_t* y,
                              long threads) {
    long fours = row / 4;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long block = 0; block < (m + 3) / 4; block++) {
        long i = block * 4;
        for (long j = 0; j < n; j += 2 * LANES) {
            const int8_t* w = packed + j * fours * 4;
            bool two = n - j > LANES;
            for (long r = i; r < i + 4 && r < m;) {
                const uint8_t* from = x + r * row;
                int32_t* to = y + r * n + j;
                if (m - r >= 4 && r == i) {
                    two ? fixed_block<4, 2>(from, row, w, fours, to, n, n - j)
                        : fixed_block<4, 1>(from, row, w, fours, to, n, n - j);
                    r += 4;
                } else {
                    two ? fixed_block<1, 2>(from, row, w, fours, to, n, n - j)
                        : fixed_block<1, 1>(from, row, w, fours, to, n, n - j);
                    r += 1;
                }
            }
        }
    }
}

// What a filter sees at each pixel as a row of bytes: x[n, c, h, w] -> rows[n * p * q, row]; `zero` stands for nought.
// Eight bytes may be read past the end of x.
extern "C" void fixed_unroll(const long* shape, const uint8_t* x, uint8_t* rows, long row, long zero, long threads) {
    const Shape S = *(const Shape*)shape;
#pragma omp parallel for num_threads(threads) collapse(2) schedule(static)
    for (long n = 0; n < S.n; n++)
        for (long p = 0; p < S.p; p++)
            for (long q = 0; q < S.q; q++) {
                uint8_t* to = rows + ((n * S.p + p) * S.q + q) * row;
                long top = p * S.stride - S.pad, left = q * S.stride - S.pad, k = 0;
                if (S.s <= 8 && row <= 1024 && top >= 0 && left >= 0 && top + S.r <= S.h && left + S.s <= S.w) {
                    uint8_t window[1024 + 8];  // whole words, of which the next overwrites what is too much
                    for (long c = 0; c < S.c; c++)
                        for (long r = 0; r < S.r; r++, k += S.s)
                            memcpy(window + k, x + ((n * S.c + c) * S.h + top + r) * S.w + left, 8);
                    for (long rest = k; rest < row; rest++) window[rest] = 0;
                    memcpy(to, window, row);
                    continue;
                }
                for (long c = 0; c < S.c; c++)
                    for (long r = 0; r < S.r; r++) {
                        long y = top + r;
                        const uint8_t* line = x + ((n * S.c + c) * S.h + y) * S.w;
                        for (long s = 0; s < S.s; s++, k++) {
                            long at = left + s;
                            to[k] = y < 0 || y >= S.h || at < 0 || at >= S.w ? zero : line[at];
                        }
                    }
                for (; k < row; k++) to[k] = 0;
            }
}

// y[m, n] * scale[n] + shift[n], back to channels before pixels: out[m / pixels, n, pixels].
extern "C" void fixed_scale(const int32_t* y, long m, long n, const float* scale, const float* shift, float* out,
                            long pixels, long threads) {
    const long TILE = 64;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long from = 0; from < m; from += TILE)
        for (long j = 0; j < n; j++)
            for (long i = from; i < m && i < from + TILE; i++)
                out[(i / pixels * n + j) * pixels + i % pixels] = (float)y[i * n + j] * scale[j] + shift[j];
}

// Rows of numbers as rows of bytes, each row filled up with noughts: byte = number / scale + zero.
extern "C" void fixed_bytes(const float* x, long m, long depth, float inverse, float zero, uint8_t* rows, long row,
                            long threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long i = 0; i < m; i++) {
        const float* from = x + i * depth;
        uint8_t* to = rows + i * row;
        for (long k = 0; k < depth; k++) {
            float value = from[k] * inverse + zero + 0.5f;
            value = value < 0.f ? 0.f : value;
            to[k] = (uint8_t)(value > 255.f ? 255.f : value);
        }
        for (long k = depth; k < row; k++) to[k] = 0;
    }
}
