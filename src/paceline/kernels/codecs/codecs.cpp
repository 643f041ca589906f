// Loops of codecs over float32. Each has the bits of its codec in algorithms/codecs, which says what it computes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__F16C__) || defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {
const int LANES = 16;  // partial sums of a row, as in algorithms/codecs/bits.py

typedef float Floats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));

inline uint32_t bits_of(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
inline float float_of(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }

// A bit for each of the next 16 numbers: whether it is not below zero.
inline uint32_t not_below_16(const float *x) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(x), _mm512_setzero_ps(), _CMP_GE_OQ);
#elif defined(__AVX2__)
    const __m256 zero = _mm256_setzero_ps();
    uint32_t low = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), zero, _CMP_GE_OQ));
    uint32_t high = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + 8), zero, _CMP_GE_OQ));
    return low | high << 8;
#else
    uint32_t found = 0;
    for (int i = 0; i < 16; i++) found |= (uint32_t)(x[i] >= 0) << i;
    return found;
#endif
}

// A bit for each of the next 16 numbers: whether its magnitude is above, and whether it is exactly, so much.
inline uint32_t above_16(const float *x, uint32_t limit) {
#if defined(__AVX512F__)
    __m512i size = _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x)), _mm512_set1_epi32(0x7fffffff));
    return _mm512_cmpgt_epi32_mask(size, _mm512_set1_epi32((int)limit));
#else
    uint32_t found = 0;
    for (int i = 0; i < 16; i++) found |= (uint32_t)((bits_of(x[i]) & 0x7fffffffu) > limit) << i;
    return found;
#endif
}

// Calls `take` with the place of every number whose magnitude, as bits, is above `limit`, in rising order.
template <class Take> void each_above(const float *x, long n, uint32_t limit, Take take) {
    long i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t found = above_16(x + i, limit); found; found &= found - 1) take(i + __builtin_ctz(found));
    for (; i < n; i++)
        if ((bits_of(x[i]) & 0x7fffffffu) > limit) take(i);
}

// 32 random bits for a place: `hashed` of algorithms/codecs/bits.py; `low` and `high` are the halves of the chance.
inline uint32_t hashed(uint32_t place, uint32_t low, uint32_t high) {
    uint32_t x = (place + low) ^ high;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

inline float uniform(uint32_t place, uint32_t low, uint32_t high) {
    return (float)(int32_t)(hashed(place, low, high) >> 8) * 0x1p-24f;
}

inline float largest_of(const float *__restrict x, long n) {
    uint32_t largest = 0;
    for (long i = 0; i < n; i++) {
        uint32_t size = bits_of(x[i]) & 0x7fffffffu;
        largest = size > largest ? size : largest;
    }
    return float_of(largest);
}

const int PIECE = 512;  // numbers of a row that are coded before they are packed

// Packs small integers of BITS bits, the first in the lowest bits, as `packed` of algorithms/codecs/bits.py.
template <int BITS> void pack(const uint8_t *__restrict codes, long n, uint8_t *__restrict out) {
    const int EACH = 8 / BITS;
    const long whole = n / EACH;
    for (long j = 0; j < whole; j++) {
        uint32_t byte = 0;
        for (int k = 0; k < EACH; k++) byte |= (uint32_t)codes[EACH * j + k] << (BITS * k);
        out[j] = (uint8_t)byte;
    }
    if (whole * EACH < n) out[whole] = 0;
    for (long i = whole * EACH; i < n; i++) out[whole] |= (uint8_t)(codes[i] << (BITS * (i % EACH)));
}

// Codes each number of each row by `code(number, place)`, and packs the codes; every row begins with a byte.
template <int BITS, class Code>
void pack_rows(const float *__restrict total, uint8_t *__restrict packed, long rows, long columns, Code code) {
    const long width = (columns * BITS + 7) / 8;
    uint8_t codes[PIECE];
    for (long row = 0; row < rows; row++)
        for (long from = 0; from < columns; from += PIECE) {
            const long n = std::min((long)PIECE, columns - from), at = row * columns + from;
            const float *x = total + at;
            for (long i = 0; i < n; i++) codes[i] = code(row, x[i], (uint32_t)(at + i));
            pack<BITS>(codes, n, packed + row * width + from * BITS / 8);
        }
}

// Calls `put(row, place, code)` for each code of each row.
template <int BITS, class Put>
void unpack_rows(const uint8_t *__restrict packed, long rows, long columns, Put put) {
    const int EACH = 8 / BITS;
    const long width = (columns * BITS + 7) / 8;
    for (long row = 0; row < rows; row++) {
        const uint8_t *raw = packed + row * width;
        const long whole = columns / EACH, at = row * columns;
        for (long j = 0; j < whole; j++)
            for (int k = 0; k < EACH; k++) put(row, at + EACH * j + k, raw[j] >> (BITS * k) & ((1 << BITS) - 1));
        for (long i = whole * EACH; i < columns; i++)
            put(row, at + i, raw[i / EACH] >> (BITS * (i % EACH)) & ((1 << BITS) - 1));
    }
}

template <int BITS>
void qsgd_rows(const float *total, float *scales, uint8_t *packed, long rows, long columns, uint32_t low, uint32_t high) {
    const int levels = (1 << (BITS - 1)) - 1;
    const float most = (float)levels;
    std::vector<float> over(rows);
    for (long row = 0; row < rows; row++) {
        scales[row] = largest_of(total + row * columns, columns);
        over[row] = 1.0f / scales[row] * most;  // in this order, as PyTorch divides a number by a tensor
        if (!(over[row] <= 3.402823466e38f)) over[row] = 0.0f;  // the row is zero
    }
    pack_rows<BITS>(total, packed, rows, columns, [&](long row, float x, uint32_t place) {
        float level = std::floor(std::fabs(x) * over[row] + uniform(place, low, high));
        level = level > most ? most : level;
        return (uint8_t)((int)level + (x < 0.0f ? levels + 1 : 0));
    });
}

template <int BITS>
void qsgd_unrows(const float *scales, const uint8_t *packed, float *out, long rows, long columns) {
    const int levels = (1 << (BITS - 1)) - 1;
    std::vector<float> step(rows);
    for (long row = 0; row < rows; row++) step[row] = scales[row] / (float)levels;
    unpack_rows<BITS>(packed, rows, columns, [&](long row, long place, int code) {
        out[place] = (float)(code <= levels ? code : levels + 1 - code) * step[row];
    });
}
}  // namespace

extern "C" {

// total = gradient + owed, or the gradient where nothing is owed; returns whether the gradient is finite.
long add_owed(const float *__restrict owed, const float *__restrict gradient, float *__restrict total, long n) {
    uint32_t largest = 0;
    for (long i = 0; i < n; i++) {
        const uint32_t size = bits_of(gradient[i]) & 0x7fffffffu;
        largest = size > largest ? size : largest;
        total[i] = owed ? owed[i] + gradient[i] : gradient[i];
    }
    return largest < 0x7f800000u;
}

// 0 where this processor has no conversion: the caller goes another way.
long half_encode(float *__restrict total, uint16_t *__restrict out, long n) {
#if defined(__F16C__)
    const float most = 65504.0f;
    const __m256 top = _mm256_set1_ps(most), bottom = _mm256_set1_ps(-most);
    long i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(total + i);
        __m128i h = _mm256_cvtps_ph(_mm256_min_ps(_mm256_max_ps(x, bottom), top), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(out + i), h);
        _mm256_storeu_ps(total + i, _mm256_sub_ps(x, _mm256_cvtph_ps(h)));
    }
    for (; i < n; i++) {
        uint16_t h = _cvtss_sh(std::min(std::max(total[i], -most), most), 0);
        out[i] = h;
        total[i] -= _cvtsh_ss(h);
    }
    return 1;
#else
    (void)total, (void)out, (void)n;
    return 0;
#endif
}

void bfloat16_encode(float *__restrict total, uint16_t *__restrict out, long n) {
    for (long i = 0; i < n; i++) {
        uint32_t u = bits_of(total[i]);
        uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
        out[i] = (uint16_t)(rounded >> 16);
        total[i] -= float_of(rounded);
    }
}

void int8_encode(float *__restrict total, int8_t *__restrict exponents, int8_t *__restrict mantissas, long rows,
                 long columns, int lowest, int highest) {
    for (long row = 0; row < rows; row++) {
        float *x = total + row * columns;
        int8_t *out = mantissas + row * columns;
        int exponent;
        std::frexp(largest_of(x, columns), &exponent);
        exponent = std::min(std::max(exponent, lowest), highest);
        exponents[row] = (int8_t)exponent;
        const float up = std::ldexp(1.0f, 7 - exponent), down = std::ldexp(1.0f, exponent - 7);
        for (long i = 0; i < columns; i++) {
            float scaled = std::nearbyint(x[i] * up);
            scaled = scaled > 127.0f ? 127.0f : scaled;
            scaled = scaled < -127.0f ? -127.0f : scaled;
            out[i] = (int8_t)(int)scaled;
            x[i] -= scaled * down;
        }
    }
}

void int8_decode(const int8_t *__restrict exponents, const int8_t *__restrict mantissas, float *__restrict out,
                 long rows, long columns) {
    for (long row = 0; row < rows; row++) {
        const float scale = std::ldexp(1.0f, (int)exponents[row] - 7);
        for (long i = 0; i < columns; i++) out[row * columns + i] = (float)mantissas[row * columns + i] * scale;
    }
}

void onebit_encode(float *__restrict total, float *__restrict means, uint8_t *__restrict packed, long rows,
                   long columns) {
    const long width = (columns + 7) / 8;
    for (long row = 0; row < rows; row++) {
        float *x = total + row * columns;
        uint8_t *bits = packed + row * width;
        Doubles high[2] = {}, low[2] = {};  // 16 lanes
        long i = 0, count = 0;
        for (; i + LANES <= columns; i += LANES) {
            uint32_t found = not_below_16(x + i);
            count += __builtin_popcount(found);
            std::memcpy(bits + i / 8, &found, 2);
            for (int half = 0; half < 2; half++) {
                Floats part;
                std::memcpy(&part, x + i + 8 * half, sizeof part);
                const Floats zero = {};
                high[half] += __builtin_convertvector(part > zero ? part : zero, Doubles);
                low[half] += __builtin_convertvector(part < zero ? part : zero, Doubles);
            }
        }
        double positive[LANES], negative[LANES];
        std::memcpy(positive, high, sizeof positive);
        std::memcpy(negative, low, sizeof negative);
        if (i < columns) std::memset(bits + i / 8, 0, width - i / 8);
        for (int lane = 0; i + lane < columns; lane++) {
            float value = x[i + lane];
            if (value >= 0) positive[lane] += value, count++, bits[(i + lane) / 8] |= 1 << lane % 8;
            else negative[lane] += value;
        }
        double more = positive[0], less = negative[0];
        for (int lane = 1; lane < LANES; lane++) more += positive[lane], less += negative[lane];
        const float up = (float)(more / std::max(count, 1l)), down = (float)(less / std::max(columns - count, 1l));
        means[row] = up;
        means[rows + row] = down;
        for (i = 0; i < columns; i++) x[i] -= x[i] >= 0 ? up : down;
    }
}

void onebit_decode(const float *__restrict means, const uint8_t *__restrict packed, float *__restrict out, long rows,
                   long columns) {
    const long width = (columns + 7) / 8;
    for (long row = 0; row < rows; row++) {
        const float up = means[row], down = means[rows + row];
        const uint8_t *bits = packed + row * width;
        float *x = out + row * columns;
        long i = 0;
#if defined(__AVX512F__)
        const __m512 high = _mm512_set1_ps(up), low = _mm512_set1_ps(down);
        for (; i + 16 <= columns; i += 16) {
            uint16_t found;
            std::memcpy(&found, bits + i / 8, 2);
            _mm512_storeu_ps(x + i, _mm512_mask_blend_ps(found, low, high));
        }
#endif
        for (; i < columns; i++) x[i] = bits[i / 8] >> i % 8 & 1 ? up : down;
    }
}

void qsgd_encode(const float *total, float *scales, uint8_t *packed, long rows, long columns, int bits, uint32_t low,
                 uint32_t high) {
    if (bits == 2) qsgd_rows<2>(total, scales, packed, rows, columns, low, high);
    else if (bits == 4) qsgd_rows<4>(total, scales, packed, rows, columns, low, high);
    else qsgd_rows<8>(total, scales, packed, rows, columns, low, high);
}

void qsgd_decode(const float *scales, const uint8_t *packed, float *out, long rows, long columns, int bits) {
    if (bits == 2) qsgd_unrows<2>(scales, packed, out, rows, columns);
    else if (bits == 4) qsgd_unrows<4>(scales, packed, out, rows, columns);
    else qsgd_unrows<8>(scales, packed, out, rows, columns);
}

void ternary_encode(const float *total, float *scales, uint8_t *packed, long rows, long columns, uint32_t low,
                    uint32_t high) {
    for (long row = 0; row < rows; row++) scales[row] = largest_of(total + row * columns, columns);
    pack_rows<2>(total, packed, rows, columns, [&](long row, float x, uint32_t place) {
        const bool kept = uniform(place, low, high) * scales[row] < std::fabs(x);
        return (uint8_t)(kept ? 1 + (x < 0.0f) : 0);
    });
}

void ternary_decode(const float *scales, const uint8_t *packed, float *out, long rows, long columns) {
    unpack_rows<2>(packed, rows, columns, [&](long row, long place, int code) {
        out[place] = (float)((code == 1) - (code == 2)) * scales[row];
    });
}

// The number of words.
long threshold_encode(float *__restrict total, int32_t *__restrict words, long n, float threshold) {
    long count = 0;
    each_above(total, n, bits_of(threshold), [&](long i) {
        const bool below = total[i] < 0;
        words[count++] = (int32_t)(2 * i + below);
        total[i] += below ? threshold : -threshold;
    });
    return count;
}

void topk_encode(float *__restrict total, int32_t *__restrict places, float *__restrict numbers, long n, long k) {
    // 1. How many numbers there are of each leading part of the magnitude; four tables, so that equal ones do not wait.
    const int SHIFT = 20, BINS = 1 << 11;
    static thread_local std::vector<uint32_t> tables(4 * BINS);
    static thread_local std::vector<uint32_t> candidates;
    std::fill(tables.begin(), tables.end(), 0);
    uint32_t *a = tables.data(), *b = a + BINS, *c = b + BINS, *d = c + BINS;
    long i = 0;
    for (; i + 4 <= n; i += 4) {
        a[(bits_of(total[i]) & 0x7fffffffu) >> SHIFT]++;
        b[(bits_of(total[i + 1]) & 0x7fffffffu) >> SHIFT]++;
        c[(bits_of(total[i + 2]) & 0x7fffffffu) >> SHIFT]++;
        d[(bits_of(total[i + 3]) & 0x7fffffffu) >> SHIFT]++;
    }
    for (; i < n; i++) a[(bits_of(total[i]) & 0x7fffffffu) >> SHIFT]++;
    // 2. The part in which the k-th largest lies, and the k-th largest itself.
    long above = 0;
    int bin = BINS - 1;
    for (; bin > 0; bin--) {
        long here = (long)a[bin] + b[bin] + c[bin] + d[bin];
        if (above + here >= k) break;
        above += here;
    }
    const uint32_t low = (uint32_t)bin << SHIFT, high = low + ((1u << SHIFT) - 1);
    candidates.clear();
    if (low == 0) {
        for (i = 0; i < n; i++)
            if ((bits_of(total[i]) & 0x7fffffffu) <= high) candidates.push_back(bits_of(total[i]) & 0x7fffffffu);
    } else {
        each_above(total, n, low - 1, [&](long place) {
            uint32_t size = bits_of(total[place]) & 0x7fffffffu;
            if (size <= high) candidates.push_back(size);
        });
    }
    std::nth_element(candidates.begin(), candidates.begin() + (k - above - 1), candidates.end(),
                     [](uint32_t x, uint32_t y) { return x > y; });
    const uint32_t least = candidates[k - above - 1];
    long larger = above;
    for (uint32_t size : candidates) larger += size > least;
    // 3. All that are larger, and of those of that magnitude the first.
    long equal = k - larger, count = 0;
    auto take = [&](long place) {
        if ((bits_of(total[place]) & 0x7fffffffu) == least && equal-- <= 0) return;
        places[count] = (int32_t)place;
        numbers[count++] = total[place];
        total[place] = 0.0f;
    };
    if (least == 0) for (i = 0; i < n && count < k; i++) take(i);
    else each_above(total, n, least - 1, take);
}
}
