
/* Sums of products over all channels of a window; a weight for each byte of it, output by output. */
static void affine(const Layer *l, const uint8_t *x, uint8_t *y, int32_t *scores) {
    for (int p = 0; p < l->height; p++)
        for (int q = 0; q < l->width; q++) {
            const int8_t *weight = l->weight;
            for (int o = 0; o < l->outputs; o++) {
                int32_t sum = l->bias[o];
                for (int r = 0; r < l->rows; r++)
                    for (int c = 0; c < l->columns; c++) {
                        const uint8_t *at = x + p * l->down + q * l->right + r * l->row + c * l->column;
                        for (int k = 0; k < l->length; k++) sum += at[k] * *weight++;
                    }
                if (y)
                    *y++ = byte_of(l, o, sum);
                else
                    *scores++ = scaled(l, o, sum);
            }
        }
}
