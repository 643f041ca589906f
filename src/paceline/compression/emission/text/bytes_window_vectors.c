
/* Sums of products within each channel, sixteen channels of up to four pixels at once. */
ALWAYS void window_image(const Layer *l, const uint8_t *x, uint8_t *y, int own, int pixels) {
    for (int channel = 0; channel < l->outputs; channel += 16) {
        int rest = l->outputs - channel;
        __mmask16 kept = (__mmask16)(rest >= 16 ? 0xFFFF : (1 << rest) - 1);
        for (int p = 0; p < l->height; p++)
            for (int begin = 0; begin < l->width; begin += pixels) {
                int q = begin + pixels <= l->width ? begin : l->width - pixels;
                __m512i sum[4];
                for (int s = 0; s < pixels; s++) sum[s] = _mm512_loadu_si512(l->bias + channel);
                for (int r = 0; r < l->rows; r++)
                    for (int c = 0; c < l->columns; c++) {
                        int tap = r * l->columns + c;
                        const uint8_t *at = x + p * l->down + q * l->right + r * l->row + c * l->column + channel;
                        __m512i weight = _mm512_set1_epi32(l->weight[own ? 0 : tap]);
                        if (own)
                            weight = _mm512_cvtepi8_epi32(
                                _mm_maskz_loadu_epi8(kept, l->weight + tap * l->outputs + channel));
#pragma GCC unroll 4
                        for (int s = 0; s < pixels; s++) { /* a byte is the lower half of its lane, the upper is 0 */
                            __m512i bytes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(kept, at + s * l->right));
                            sum[s] = _mm512_add_epi32(sum[s], _mm512_madd_epi16(bytes, weight));
                        }
                    }
                put_bytes(l, channel, 0, sum, pixels, y + (p * l->width + q) * l->outputs + channel, l->outputs);
            }
    }
}
