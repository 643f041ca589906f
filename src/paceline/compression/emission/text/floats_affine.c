
ALWAYS Lanes loaded(const float *from) { return *(const Lanes *)from; }

/* The first numbers of some lanes. */
ALWAYS void kept(float *to, Lanes value, int count) {
    if (count >= LANES)
        *(Lanes *)to = value;
    else
        memcpy(to, &value, 4 * (size_t)count);
}

/* Sums of `pixels` windows by `blocks` of outputs, all in registers; `parts` chains for each hide the additions' time. */
ALWAYS void sums(const Layer *l, const float *x, int block, int pixels, int blocks, int parts, Lanes *sum) {
    int size = l->rows * l->columns * l->length * 16;
    const float *weight = l->weight + block * size;
    for (int s = 0; s < pixels * blocks; s++) sum[s] = loaded(l->bias + 16 * (block + s % blocks));
    for (int s = pixels * blocks; s < parts * pixels * blocks; s++) sum[s] = (Lanes){0};
    for (int r = 0; r < l->rows; r++)
        for (int c = 0; c < l->columns; c++) {
            const float *at = x + r * l->row + c * l->column;
            int k = 0;
            for (; k + parts <= l->length; k += parts, weight += 16 * parts)
#pragma GCC unroll 8
                for (int part = 0; part < parts; part++)
#pragma GCC unroll 8
                    for (int b = 0; b < blocks; b++) {
                        Lanes each = loaded(weight + b * size + 16 * part);
#pragma GCC unroll 8
                        for (int p = 0; p < pixels; p++)
                            sum[(part * pixels + p) * blocks + b] += each * at[p * l->right + k + part];
                    }
            for (; k < l->length; k++, weight += 16)
                for (int b = 0; b < blocks; b++)
                    for (int p = 0; p < pixels; p++)
                        sum[p * blocks + b] += loaded(weight + b * size) * at[p * l->right + k];
        }
    for (int s = pixels * blocks; s < parts * pixels * blocks; s++) sum[s % (pixels * blocks)] += sum[s];
}

ALWAYS void affine_row(const Layer *l, const float *x, float *y) {
    int all = (l->outputs + 15) / 16, block = 0;
    for (; block + 4 <= all; block += 4) {
        Lanes sum[8];
        sums(l, x, block, 1, 4, 2, sum);
        for (int b = 0; b < 4; b++)
            kept(y + 16 * (block + b), activated(l->function, sum[b]), l->outputs - 16 * (block + b));
    }
    for (; block < all; block++) {
        Lanes sum[4];
        sums(l, x, block, 1, 1, 4, sum);
        kept(y + 16 * block, activated(l->function, sum[0]), l->outputs - 16 * block);
    }
}

/* An image, `pixels` of a line at once; the last ones are computed twice where they do not divide the line. */
ALWAYS void affine_image(const Layer *l, const float *x, float *y, int pixels) {
    for (int block = 0; block < (l->outputs + 15) / 16; block++)
        for (int p = 0; p < l->height; p++)
            for (int begin = 0; begin < l->width; begin += pixels) {
                int q = begin + pixels <= l->width ? begin : l->width - pixels;
                Lanes sum[8];
                sums(l, x + p * l->down + q * l->right, block, pixels, 1, 1, sum);
                for (int s = 0; s < pixels; s++)
                    kept(y + (p * l->width + q + s) * l->outputs + 16 * block, activated(l->function, sum[s]),
                         l->outputs - 16 * block);
            }
}
