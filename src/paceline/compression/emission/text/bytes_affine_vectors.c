
ALWAYS __m512i everywhere(const uint8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

/* Sums of `pixels` windows by `blocks` of outputs, all in registers. */
ALWAYS void sums(const Layer *l, const uint8_t *x, int block, int pixels, int blocks, int bits, __m512i *sum) {
    int groups = (l->length + 3) / 4, taken = bits == 4 ? (groups + 1) / 2 : groups;
    int size = l->rows * l->columns * taken * 64;
    const int8_t *weight = l->weight + block * size;
    for (int s = 0; s < pixels * blocks; s++)
        sum[s] = bits == 4 ? _mm512_setzero_si512() : _mm512_loadu_si512(l->bias + 16 * (block + s % blocks));
    for (int r = 0; r < l->rows; r++)
        for (int c = 0; c < l->columns; c++) {
            const uint8_t *at = x + r * l->row + c * l->column;
            for (int k = 0; k < taken; k++, weight += 64) {
                if (bits == 4) {
                    __m512i upper = _mm512_set1_epi8(-16);
#pragma GCC unroll 8
                    for (int b = 0; b < blocks; b++) {
                        __m512i two = _mm512_loadu_si512(weight + b * size);
                        __m512i first = _mm512_and_si512(_mm512_slli_epi16(two, 4), upper);
                        __m512i second = _mm512_and_si512(two, upper);
#pragma GCC unroll 8
                        for (int p = 0; p < pixels; p++) {
                            __m512i *to = sum + p * blocks + b;
                            *to = _mm512_dpbusd_epi32(*to, everywhere(at + p * l->right + 8 * k), first);
                            *to = _mm512_dpbusd_epi32(*to, everywhere(at + p * l->right + 8 * k + 4), second);
                        }
                    }
                } else {
#pragma GCC unroll 8
                    for (int b = 0; b < blocks; b++) {
                        __m512i four = _mm512_loadu_si512(weight + b * size);
#pragma GCC unroll 8
                        for (int p = 0; p < pixels; p++)
                            sum[p * blocks + b] =
                                _mm512_dpbusd_epi32(sum[p * blocks + b], everywhere(at + p * l->right + 4 * k), four);
                    }
                }
            }
        }
    if (bits == 4)
        for (int s = 0; s < pixels * blocks; s++)
            sum[s] = _mm512_add_epi32(_mm512_srai_epi32(sum[s], 4), /* products had the factor 16 */
                                      _mm512_loadu_si512(l->bias + 16 * (block + s % blocks)));
}

/* One pixel, up to 64 outputs at once. */
ALWAYS void affine_row(const Layer *l, const uint8_t *x, uint8_t *y, int32_t *scores, int bits) {
    int all = (l->outputs + 15) / 16, block = 0;
    for (; block + 4 <= all; block += 4) {
        __m512i sum[4];
        sums(l, x, block, 1, 4, bits, sum);
        if (!scores) put_bytes(l, 16 * block, 16, sum, 4, y + 16 * block, 0);
        if (scores)
            for (int b = 0; b < 4; b++) {
                int rest = l->outputs - 16 * (block + b);
                _mm512_mask_storeu_epi32(scores + 16 * (block + b), (__mmask16)(rest >= 16 ? 0xFFFF : (1 << rest) - 1),
                                         scaled_lanes(l, 16 * (block + b), sum[b]));
            }
    }
    for (; block < all; block++) {
        __m512i sum[1];
        int rest = l->outputs - 16 * block;
        __mmask16 kept = (__mmask16)(rest >= 16 ? 0xFFFF : (1 << rest) - 1);
        sums(l, x, block, 1, 1, bits, sum);
        if (scores)
            _mm512_mask_storeu_epi32(scores + 16 * block, kept, scaled_lanes(l, 16 * block, sum[0]));
        else
            put_bytes(l, 16 * block, 0, sum, 1, y + 16 * block, 0);
    }
}

/* An image, `pixels` of a line at once; the last ones are computed twice where they do not divide the line. */
ALWAYS void affine_image(const Layer *l, const uint8_t *x, uint8_t *y, int bits, int pixels) {
    for (int block = 0; block < (l->outputs + 15) / 16; block++)
        for (int p = 0; p < l->height; p++)
            for (int begin = 0; begin < l->width; begin += pixels) {
                int q = begin + pixels <= l->width ? begin : l->width - pixels;
                __m512i sum[8];
                sums(l, x + p * l->down + q * l->right, block, pixels, 1, bits, sum);
                for (int s = 0; s < pixels; s += 4)
                    put_bytes(l, 16 * block, 0, sum + s, pixels - s > 4 ? 4 : pixels - s,
                              y + (p * l->width + q + s) * l->outputs + 16 * block, l->outputs);
            }
}
