
/* Four outputs side by side, four bytes of the window at once. Weights lie as [block of 4][part][4 bytes][output][4]. */
#if defined(__ARM_FEATURE_DSP)
/* Bytes 0 and 2 of a word, or 1 and 3, as two halves; two products of halves are added to a sum. */
#define HALVES(found, how, word) __asm__(how : "=r"(found) : "r"(word))
#define LOWER "sxtb16 %0, %1"
#define UPPER "sxtb16 %0, %1, ror #8"
#define ADD(sum, left, right) __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(left), "r"(right))

static inline uint32_t word(const void *from) {
    uint32_t found;
    memcpy(&found, from, 4);
    return found;
}

#define PRODUCTS(sum, weights, even, odd)                                                                             \
    do {                                                                                                              \
        uint32_t four = weights, lower, upper;                                                                        \
        HALVES(lower, LOWER, four);                                                                                   \
        HALVES(upper, UPPER, four);                                                                                   \
        ADD(sum, lower, even);                                                                                        \
        ADD(sum, upper, odd);                                                                                         \
    } while (0)

static inline const int8_t *products(const uint8_t *at, const int8_t *weight, int groups, int32_t *sums) {
    int32_t one = sums[0], two = sums[1], three = sums[2], four_ = sums[3];
    for (const uint8_t *end = at + 4 * groups; at < end; at += 4, weight += 16) {
        uint32_t bytes = word(at), even, odd;
        HALVES(even, "uxtb16 %0, %1", bytes);
        HALVES(odd, "uxtb16 %0, %1, ror #8", bytes);
        PRODUCTS(one, word(weight), even, odd);
        PRODUCTS(two, word(weight + 4), even, odd);
        PRODUCTS(three, word(weight + 8), even, odd);
        PRODUCTS(four_, word(weight + 12), even, odd);
    }
    sums[0] = one, sums[1] = two, sums[2] = three, sums[3] = four_;
    return weight;
}

/* The same with two weights in a byte; products have the factor 16. */
static inline const int8_t *products_4(const uint8_t *at, const int8_t *weight, int groups, int32_t *sums) {
    int32_t one = sums[0], two = sums[1], three = sums[2], four_ = sums[3];
    for (const uint8_t *end = at + 4 * groups; at < end; at += 8, weight += 16) {
        uint32_t bytes = word(at), even, odd, more = word(at + 4), even_more, odd_more, kept = 0xF0F0F0F0u;
        HALVES(even, "uxtb16 %0, %1", bytes);
        HALVES(odd, "uxtb16 %0, %1, ror #8", bytes);
        HALVES(even_more, "uxtb16 %0, %1", more);
        HALVES(odd_more, "uxtb16 %0, %1, ror #8", more);
        PRODUCTS(one, word(weight) << 4 & kept, even, odd);
        PRODUCTS(one, word(weight) & kept, even_more, odd_more);
        PRODUCTS(two, word(weight + 4) << 4 & kept, even, odd);
        PRODUCTS(two, word(weight + 4) & kept, even_more, odd_more);
        PRODUCTS(three, word(weight + 8) << 4 & kept, even, odd);
        PRODUCTS(three, word(weight + 8) & kept, even_more, odd_more);
        PRODUCTS(four_, word(weight + 12) << 4 & kept, even, odd);
        PRODUCTS(four_, word(weight + 12) & kept, even_more, odd_more);
    }
    sums[0] = one, sums[1] = two, sums[2] = three, sums[3] = four_;
    return weight;
}
#else
static inline const int8_t *products(const uint8_t *at, const int8_t *weight, int groups, int32_t *sums) {
    for (int k = 0; k < groups; k++, at += 4)
        for (int o = 0; o < 4; o++)
            for (int b = 0; b < 4; b++) sums[o] += at[b] * *weight++;
    return weight;
}

static inline const int8_t *products_4(const uint8_t *at, const int8_t *weight, int groups, int32_t *sums) {
    for (int k = 0; k < groups; k += 2, at += 8)
        for (int o = 0; o < 4; o++)
            for (int b = 0; b < 4; b++, weight++)
                sums[o] += at[b] * (int8_t)((uint8_t)*weight << 4) + at[4 + b] * (*weight & -16);
    return weight;
}
#endif

/* The bytes of a window side by side; words are copied, and what is too much of one is written over by the next. */
static inline void gathered(const Layer *l, const uint8_t *x, uint8_t *y) {
    for (int r = 0; r < l->rows; r++)
        for (int c = 0; c < l->columns; c++, y += l->length) {
            const uint8_t *at = x + r * l->row + c * l->column;
            for (int k = 0; k < l->length; k += 4) memcpy(y + k, at + k, 4);
        }
}

/* With a place for a window, each one is gathered there before it is read, and weights lie as of one part. */
static inline __attribute__((always_inline)) void affine_fours(const Layer *l, const uint8_t *x, uint8_t *y,
                                                               int32_t *scores, int bits, uint8_t *window) {
    int rows = window ? 1 : l->rows, columns = window ? 1 : l->columns;
    int length = window ? l->rows * l->columns * l->length : l->length;
    int groups = bits == 4 ? (length + 7) / 8 * 2 : (length + 3) / 4;
    for (int p = 0; p < l->height; p++)
        for (int q = 0; q < l->width; q++) {
            const int8_t *weight = l->weight;
            const uint8_t *from = x + p * l->down + q * l->right;
            if (window) {
                gathered(l, from, window);
                from = window;
            }
            for (int o = 0; o < l->outputs; o += 4) {
                int32_t sum[4] = {0, 0, 0, 0};
                for (int r = 0; r < rows; r++)
                    for (int c = 0; c < columns; c++) {
                        const uint8_t *at = from + r * l->row + c * l->column;
                        weight = bits == 4 ? products_4(at, weight, groups, sum) : products(at, weight, groups, sum);
                    }
                for (int k = 0; k < 4 && o + k < l->outputs; k++) {
                    int32_t found = (bits == 4 ? sum[k] >> 4 : sum[k]) + l->bias[o + k];
                    if (y)
                        *y++ = byte_of(l, o + k, found);
                    else
                        *scores++ = scaled(l, o + k, found);
                }
            }
        }
}
