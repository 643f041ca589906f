
/* The same layout of weights without vectors, for other machines. */
static inline void affine_row(const Layer *l, const uint8_t *x, uint8_t *y, int32_t *scores, int bits) {
    int groups = (l->length + 3) / 4, taken = bits == 4 ? (groups + 1) / 2 : groups;
    int size = l->rows * l->columns * taken * 64;
    for (int o = 0; o < l->outputs; o++) {
        const int8_t *weight = l->weight + o / 16 * size + o % 16 * 4;
        int32_t sum = 0;
        for (int r = 0; r < l->rows; r++)
            for (int c = 0; c < l->columns; c++) {
                const uint8_t *at = x + r * l->row + c * l->column;
                for (int k = 0; k < taken; k++, weight += 64)
                    for (int b = 0; b < 4; b++)
                        if (bits == 4)
                            sum += at[8 * k + b] * (int8_t)((uint8_t)weight[b] << 4) +
                                   at[8 * k + 4 + b] * (weight[b] & -16);
                        else
                            sum += at[4 * k + b] * weight[b];
            }
        sum = (bits == 4 ? sum >> 4 : sum) + l->bias[o]; /* products of 4 bits had the factor 16 */
        if (scores)
            scores[o] = scaled(l, o, sum);
        else if (y)
            y[o] = byte_of(l, o, sum);
    }
}

static inline void affine_image(const Layer *l, const uint8_t *x, uint8_t *y, int bits, int pixels) {
    (void)pixels;
    for (int p = 0; p < l->height; p++)
        for (int q = 0; q < l->width; q++, y += l->outputs)
            affine_row(l, x + p * l->down + q * l->right, y, 0, bits);
}
