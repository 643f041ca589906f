
/* The highest byte of a window of each channel; what lies outside the image does not count. */
static void highest(const Layer *l, const uint8_t *x, uint8_t *y, int height, int width, int top, int left) {
    int stride_down = l->down, stride_right = l->right, across = width * l->outputs;
    for (int p = 0; p < l->height; p++)
        for (int q = 0; q < l->width; q++, y += l->outputs)
            for (int r = 0; r < l->rows; r++)
                for (int c = 0; c < l->columns; c++) {
                    int row = p * stride_down + r * l->row - top, column = q * stride_right + c * l->column - left;
                    int first = r == 0 && c == 0;
                    if (first) memset(y, 0, (size_t)l->outputs);
                    if (row < 0 || row >= height || column < 0 || column >= width) continue;
                    const uint8_t *at = x + row * across + column * l->outputs;
                    for (int o = 0; o < l->outputs; o++) y[o] = at[o] > y[o] ? at[o] : y[o];
                }
}
