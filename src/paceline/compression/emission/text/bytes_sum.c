
/* Two values, number by number: differences from their zeros, each with a factor. */
static void summed(const Layer *l, const uint8_t *left, const uint8_t *right, uint8_t *y, int zero_left,
                   int zero_right) {
    for (int k = 0; k < l->length; k++) {
        int32_t sum = (left[k] - zero_left) * l->factor[0] + (right[k] - zero_right) * l->factor[1];
        int32_t found = ((sum + (1 << (l->shift - 1))) >> l->shift) + l->zero;
        found = found < l->low ? l->low : found > 255 ? 255 : found;
        y[k] = l->table ? l->table[found] : (uint8_t)found;
    }
}
