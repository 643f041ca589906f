
/* Sums of products within each channel; weights of each channel, or (`own` is 0) the same ones for all. */
static void window(const Layer *l, const uint8_t *x, uint8_t *y, int32_t *scores, int own) {
    for (int p = 0; p < l->height; p++)
        for (int q = 0; q < l->width; q++)
            for (int o = 0; o < l->outputs; o++) {
                const int8_t *weight = l->weight + o * own;
                int32_t sum = l->bias[o];
                for (int r = 0; r < l->rows; r++)
                    for (int c = 0; c < l->columns; c++) {
                        sum += x[p * l->down + q * l->right + r * l->row + c * l->column + o] * *weight;
                        weight += own ? l->outputs : 1;
                    }
                if (y)
                    *y++ = byte_of(l, o, sum);
                else
                    *scores++ = scaled(l, o, sum);
            }
}
