
/* An activation at every place. */
ALWAYS void applied(const float *x, float *y, int count, int which) {
    for (int k = 0; k < count; k += LANES) {
        Lanes some = {0};
        size_t size = 4 * (size_t)(count - k < LANES ? count - k : LANES);
        memcpy(&some, x + k, size);
        some = activated(which, some);
        memcpy(y + k, &some, size);
    }
}
