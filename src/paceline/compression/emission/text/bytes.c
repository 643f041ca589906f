/* A layer's window moves over an image whose pixels have their channels side by side. */
typedef struct {
    int height, width, outputs;       /* of the result */
    int rows, columns, length;        /* of the window, and the bytes that lie together in it */
    int down, right, row, column;     /* bytes from a window to the next one, and from part to part within it */
    int shift, zero, low;             /* sums become bytes: (sum * factor >> shift) + zero, from low to 255 */
    const int8_t *weight;
    const int32_t *bias, *factor;     /* no factors: all are 1 */
    const uint8_t *table;             /* an activation; none: bytes stay as they are */
} Layer;

/* Shifts of negative numbers are arithmetic, as in every compiler that is known to us. */
static inline int32_t scaled(const Layer *l, int channel, int32_t sum) {
    if (!l->factor) return (sum + (1 << (l->shift - 1))) >> l->shift;
    return (int32_t)(((int64_t)sum * l->factor[channel] + ((int64_t)1 << (l->shift - 1))) >> l->shift);
}

static inline uint8_t byte_of(const Layer *l, int channel, int32_t sum) {
    int32_t found = scaled(l, channel, sum) + l->zero;
    found = found < l->low ? l->low : found > 255 ? 255 : found;
    return l->table ? l->table[found] : (uint8_t)found;
}
