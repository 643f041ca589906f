
/* A number as a byte, rounded; what is no number becomes 0. */
static inline uint8_t net_byte(float x) {
    float scaled_up = x * NET_INPUT_INVERSE;
    scaled_up += NET_INPUT_ZERO + 0.5f;
    scaled_up = scaled_up > 0.0f ? scaled_up : 0.0f;
    return (uint8_t)(scaled_up < 255.5f ? scaled_up : 255.5f);
}
