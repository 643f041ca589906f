#include <math.h>
static inline Lanes gelu(Lanes x) {
    for (int k = 0; k < LANES; k++) x[k] = 0.5f * x[k] * (1.0f + erff(x[k] * 0.70710678f));
    return x;
}
