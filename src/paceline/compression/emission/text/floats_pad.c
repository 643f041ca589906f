
/* An image within a margin of noughts. */
static void padded(const float *x, float *y, int height, int line, int top, int side) {
    int whole = line + 2 * side;
    memset(y, 0, 4 * (size_t)whole * (size_t)(height + 2 * top));
    for (int p = 0; p < height; p++) memcpy(y + (p + top) * whole + side, x + p * line, 4 * (size_t)line);
}
