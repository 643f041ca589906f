/* e to the power x: a power of two times a polynomial. */
static inline float exp_(float x) {
    x = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
    int32_t whole = (int32_t)(x * 1.44269504f + (x < 0.0f ? -0.5f : 0.5f));
    x = x - (float)whole * 0.693359375f + (float)whole * 2.12194440e-4f;
    float found = 1.9875691500e-4f * x + 1.3981999507e-3f, power;
    found = found * x + 8.3334519073e-3f;
    found = found * x + 4.1665795894e-2f;
    found = found * x + 1.6666665459e-1f;
    found = found * x + 5.0000001201e-1f;
    found = found * x * x + x + 1.0f;
    whole = (whole + 127) << 23;
    memcpy(&power, &whole, 4);
    return found * power;
}

/* The error function, by Abramowitz and Stegun 7.1.26. */
static inline float erf_(float x) {
    float size = x < 0.0f ? -x : x, t = 1.0f / (1.0f + 0.3275911f * size);
    float p = 1.061405429f * t - 1.453152027f;
    p = (((p * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    float found = 1.0f - p * exp_(-size * size);
    return x < 0.0f ? -found : found;
}

static inline float reciprocal_(float x) { return 1.0f / x; }
static inline float relu_(float x) { return x > 0.0f ? x : 0.0f; }
static inline float sigmoid_(float x) { return 1.0f / (1.0f + exp_(-x)); }
static inline float tanh_(float x) { return 1.0f - 2.0f / (1.0f + exp_(2.0f * x)); }
static inline float silu_(float x) { return x * sigmoid_(x); }
static inline float gelu_(float x) { return 0.5f * x * (1.0f + erf_(x * 0.70710678f)); }
static inline float gelu_tanh_(float x) { return x * sigmoid_(1.595769122f * (x + 0.044715f * x * x * x)); }
#define reciprocal_root_(x) (1.0f / sqrtf(x))

/* The row of a table that a whole number names; one outside the table names the nearest. */
static inline int32_t row_of(int32_t token, int32_t rows) { return token < 0 ? 0 : token < rows ? token : rows - 1; }
