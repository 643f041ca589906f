
ALWAYS __m512i everywhere(const uint8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

/* Sums of `pixels` windows by `blocks` of outputs, all in registers; `chains` of each hide the time of an addition. */
ALWAYS void sums(const Layer *l, const uint8_t *x, int block, int pixels, int blocks, int chains, int bits,
                 __m512i *sum) {
    int groups = (l->length + 3) / 4, taken = bits == 4 ? (groups + 1) / 2 : groups, tiles = pixels * blocks;
    int size = l->rows * l->columns * taken * 64;
    const int8_t *weight = l->weight + block * size;
    __m512i upper = _mm512_set1_epi8(-16);
    for (int s = 0; s < chains * tiles; s++) sum[s] = _mm512_setzero_si512();
    for (int r = 0; r < l->rows; r++)
        for (int c = 0; c < l->columns; c++) {
            const uint8_t *at = x + r * l->row + c * l->column;
            for (int begin = 0; begin < taken; begin += chains)
#pragma GCC unroll 4
                for (int chain = 0; chain < chains; chain++) {
                    int k = begin + chain;
                    if (k >= taken) break;
#pragma GCC unroll 8
                    for (int b = 0; b < blocks; b++) {
                        __m512i all = _mm512_loadu_si512(weight + k * 64 + b * size);
#pragma GCC unroll 8
                        for (int p = 0; p < pixels; p++) {
                            __m512i *to = sum + chain * tiles + p * blocks + b;
                            const uint8_t *from = at + p * l->right + k * (bits == 4 ? 8 : 4);
                            if (bits == 4) { /* two weights in a byte, each with the factor 16 */
                                __m512i first = _mm512_and_si512(_mm512_slli_epi16(all, 4), upper);
                                *to = _mm512_dpbusd_epi32(*to, everywhere(from), first);
                                *to = _mm512_dpbusd_epi32(*to, everywhere(from + 4), _mm512_and_si512(all, upper));
                            } else
                                *to = _mm512_dpbusd_epi32(*to, everywhere(from), all);
                        }
                    }
                }
            weight += taken * 64;
        }
    for (int s = tiles; s < chains * tiles; s++) sum[s % tiles] = _mm512_add_epi32(sum[s % tiles], sum[s]);
    for (int s = 0; s < tiles; s++) {
        __m512i bias = _mm512_loadu_si512(l->bias + 16 * (block + s % blocks));
        sum[s] = _mm512_add_epi32(bits == 4 ? _mm512_srai_epi32(sum[s], 4) : sum[s], bias);
    }
}

/* Up to four blocks of outputs of one pixel. */
ALWAYS void affine_blocks(const Layer *l, const uint8_t *x, uint8_t *y, int32_t *scores, int block, int blocks,
                          int bits) {
    __m512i sum[8];
    sums(l, x, block, 1, blocks, blocks == 1 ? 4 : 2, bits, sum);
    if (y)
        put_bytes(l, 16 * block, 16, sum, blocks, y + 16 * block, 0);
    else
        for (int b = block; b < block + blocks; b++) {
            int rest = l->outputs - 16 * b;
            __mmask16 kept = (__mmask16)(rest >= 16 ? 0xFFFF : (1 << rest) - 1);
            _mm512_mask_storeu_epi32(scores + 16 * b, kept, scaled_lanes(l, 16 * b, sum[b - block]));
        }
}

ALWAYS void affine_row(const Layer *l, const uint8_t *x, uint8_t *y, int32_t *scores, int bits) {
    int all = (l->outputs + 15) / 16, block = 0;
    for (; block + 4 <= all; block += 4) affine_blocks(l, x, y, scores, block, 4, bits);
    if (all - block == 3) affine_blocks(l, x, y, scores, block, 3, bits);
    if (all - block == 2) affine_blocks(l, x, y, scores, block, 2, bits);
    if (all - block == 1) affine_blocks(l, x, y, scores, block, 1, bits);
}

/* An image, `pixels` of a line at once; the last ones are computed twice where they do not divide the line. */
ALWAYS void affine_image(const Layer *l, const uint8_t *x, uint8_t *y, int bits, int pixels) {
    for (int block = 0; block < (l->outputs + 15) / 16; block++)
        for (int p = 0; p < l->height; p++)
            for (int begin = 0; begin < l->width; begin += pixels) {
                int q = begin + pixels <= l->width ? begin : l->width - pixels;
                __m512i sum[8];
                sums(l, x + p * l->down + q * l->right, block, pixels, 1, 1, bits, sum);
                for (int s = 0; s < pixels; s += 4)
                    put_bytes(l, 16 * block, 0, sum + s, pixels - s > 4 ? 4 : pixels - s,
                              y + (p * l->width + q + s) * l->outputs + 16 * block, l->outputs);
            }
}
