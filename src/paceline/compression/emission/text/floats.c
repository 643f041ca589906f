#pragma GCC diagnostic ignored "-Wpsabi" /* vectors wider than the processor's are only passed to inlined functions */
#define LANES 16
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Whole __attribute__((vector_size(4 * LANES)));
#define ALWAYS static inline __attribute__((always_inline))

/* A layer's window moves over an image whose pixels have their channels side by side. */
typedef struct {
    int height, width, outputs;      /* of the result */
    int rows, columns, length;       /* of the window, and the numbers that lie together in it */
    int down, right, row, column;    /* numbers from a window to the next one, and from part to part within it */
    const float *weight, *bias;      /* weights lie as [block of 16][part of the window][number][output] */
    int function; /* an activation, by its number in `activated` */
} Layer;

ALWAYS Lanes chosen(Whole where, Lanes one, Lanes other) {
    return (Lanes)(((Whole)one & where) | ((Whole)other & ~where));
}

ALWAYS Lanes exponential(Lanes x) {
    const float round = 12582912.0f; /* 1.5 * 2**23: adding it rounds to a whole number */
    x = chosen(x > 88.0f, (Lanes){0} + 88.0f, x);
    x = chosen(x < -87.0f, (Lanes){0} - 87.0f, x);
    Lanes whole = x * 1.44269504f + round;
    Whole power = (Whole)whole << 23;
    whole -= round;
    x = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    Lanes found = 1.9875691500e-4f * x + 1.3981999507e-3f;
    found = found * x + 8.3334519073e-3f;
    found = found * x + 4.1665795894e-2f;
    found = found * x + 1.6666665459e-1f;
    found = found * x + 5.0000001201e-1f;
    found = found * x * x + x + 1.0f;
    return (Lanes)((Whole)found + power);
}
