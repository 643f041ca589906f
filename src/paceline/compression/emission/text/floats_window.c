
/* Sums of products within each channel; weights of each channel, or (`own` is 0) the same ones for all. */
ALWAYS void window(const Layer *l, const float *x, float *y, int own) {
    for (int p = 0; p < l->height; p++)
        for (int q = 0; q < l->width; q++, y += l->outputs)
            for (int o = 0; o < l->outputs; o += LANES) {
                Lanes sum = {0};
                int some = l->outputs - o < LANES ? l->outputs - o : LANES;
                memcpy(&sum, l->bias + o, 4 * (size_t)some);
                for (int r = 0; r < l->rows; r++)
                    for (int c = 0; c < l->columns; c++) {
                        int tap = r * l->columns + c;
                        Lanes numbers = {0}, weight = (Lanes){0} + l->weight[own ? 0 : tap];
                        memcpy(&numbers, x + p * l->down + q * l->right + r * l->row + c * l->column + o,
                               4 * (size_t)some);
                        if (own) memcpy(&weight, l->weight + tap * l->outputs + o, 4 * (size_t)some);
                        sum += numbers * weight;
                    }
                kept(y + o, activated(l->function, sum), some);
            }
}
