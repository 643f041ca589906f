
/* An image within a margin of the byte that stands for nought. */
static void padded(const uint8_t *x, uint8_t *y, int height, int line, int top, int side, int zero) {
    int whole = line + 2 * side;
    memset(y, zero, (size_t)whole * (size_t)(height + 2 * top));
    for (int p = 0; p < height; p++)
        memcpy(y + (p + top) * whole + side, x + p * line, (size_t)line);
}
