
/* The highest number of a window of each channel; what lies outside the image does not count. */
static void highest(const Layer *l, const float *x, float *y, int height, int width, int top, int left) {
    for (int p = 0; p < l->height; p++)
        for (int q = 0; q < l->width; q++, y += l->outputs) {
            for (int o = 0; o < l->outputs; o++) y[o] = -3.4e38f;
            for (int r = 0; r < l->rows; r++)
                for (int c = 0; c < l->columns; c++) {
                    int row = p * l->down + r * l->row - top, column = q * l->right + c * l->column - left;
                    if (row < 0 || row >= height || column < 0 || column >= width) continue;
                    const float *at = x + (row * width + column) * l->outputs;
                    for (int o = 0; o < l->outputs; o++) y[o] = at[o] > y[o] ? at[o] : y[o];
                }
        }
}
