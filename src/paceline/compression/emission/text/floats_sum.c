
/* Two values, number by number. */
ALWAYS void summed(const float *left, const float *right, float *y, int count, int which) {
    for (int k = 0; k < count; k += LANES) {
        Lanes one = {0}, other = {0};
        size_t some = 4 * (size_t)(count - k < LANES ? count - k : LANES);
        memcpy(&one, left + k, some);
        memcpy(&other, right + k, some);
        one = activated(which, one + other);
        memcpy(y + k, &one, some);
    }
}
