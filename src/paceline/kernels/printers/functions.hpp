// --- lanes ---

INLINE V all(R x) { return V{} + x; }
#if LANES == 1
INLINE R lane(V v, int) { return v; }
INLINE void set_lane(V& v, int, R x) { v = x; }
#else
INLINE R lane(V v, int l) { return v[l]; }
INLINE void set_lane(V& v, int l, R x) { v[l] = x; }
#endif

// Always the same tree, whoever asks.
INLINE R sum_of_lanes(V v) {
    R part[LANES];
    std::memcpy(part, &v, sizeof v);
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) part[l] += part[l + half];
    return part[0];
}

// --- functions of one number ---

template <class F> INLINE V each(V x, F f) {
    V y = V{};
    for (int l = 0; l < LANES; l++) set_lane(y, l, f(lane(x, l)));
    return y;
}

#if LANES == 1 || DOUBLE
INLINE V larger(V a, V b) { return b > a ? b : a; }
INLINE V reciprocal(V x) { return all(1) / x; }
INLINE V erf_(V x) { return each(x, [](R a) { return std::erf(a); }); }
#if LANES == 1
INLINE V exp_(V x) { return each(x, [](R a) { return std::exp(a); }); }
INLINE V tanh_(V x) { return each(x, [](R a) { return std::tanh(a); }); }
#else
// --- vectors of doubles, as in Cephes: two units in the last place ---

typedef int64_t WORDS __attribute__((vector_size(LANES * 8)));

// 2^k times a quotient of two polynomials on half a power of two to both sides; 0 below the ordinary numbers.
INLINE V exp_(V x) {
    const V shifted = x * 1.4426950408889634074 + 6755399441055744.0;  // the sum has no bits for a fraction
    const V k = shifted - 6755399441055744.0;
    V r = x - k * 6.93145751953125e-1;
    r = r - k * 1.42860682030941723212e-6;
    const V s = r * r;
    V p = all(1.26177193074810590878e-4);
    p = p * s + 3.02994407707441961300e-2;
    p = (p * s + 9.99999999999999999910e-1) * r;
    V q = all(3.00198505138664455042e-6);
    q = q * s + 2.52448340349684104192e-3;
    q = q * s + 2.27265548208155028766e-1;
    q = q * s + 2.00000000000000000009;
    const V y = (all(1) + p / (q - p) * 2.0) * (V)(((WORDS)shifted + 1023) << 52);
    return x > all(709) ? all(INFINITY) : x < all(-708) ? all(0) : y;
}

// Near zero a quotient of two polynomials, and else by e^x.
INLINE V tanh_(V x) {
    const V s = x * x;
    V p = all(-9.64399179425052238628e-1);
    p = p * s + -9.92877231001918586564e1;
    p = p * s + -1.61468768441708447952e3;
    V q = s + 1.12811678491632931402e2;
    q = q * s + 2.23548839060100448583e3;
    q = q * s + 4.84406305325125486048e3;
    const V a = x < all(0) ? -x : x;
    const V far = all(1) - all(2) / (exp_(a + a) + all(1));
    return a < all(0.625) ? x + x * s * (p / q) : x < all(0) ? -far : far;
}
#endif
INLINE V sigmoid(V x) { return reciprocal(all(1) + exp_(-x)); }
#else
// --- what a processor has one instruction for; of a number that is none, none comes out ---

typedef int32_t WORDS __attribute__((vector_size(LANES * 4)));

#if defined(__AVX512F__) && LANES == 16
INLINE V larger(V a, V b) { return (V)_mm512_max_ps((__m512)b, (__m512)a); }
INLINE V smaller(V a, V b) { return (V)_mm512_min_ps((__m512)b, (__m512)a); }
INLINE V rounded(V x) { return (V)_mm512_roundscale_ps((__m512)x, 8); }
INLINE V scaled(V x, V k) { return (V)_mm512_scalef_ps((__m512)x, (__m512)k); }  // x * 2^k
INLINE V within(V x) { return x; }
// A rough reciprocal and a step of Newton's: 1e-7 relative, in a third of a division's time.
INLINE V reciprocal(V x) {
    const V r = (V)_mm512_rcp14_ps((__m512)x);
    return r * (all(2) - x * r);
}
#else
INLINE V larger(V a, V b) { return b > a ? b : a; }
INLINE V smaller(V a, V b) { return b < a ? b : a; }
INLINE V rounded(V x) { return (x + 12582912.0f) - 12582912.0f; }  // the sum has no bits for a fraction
INLINE V scaled(V x, V k) { return x * (V)(((WORDS)(k + 12582912.0f) + 127) << 23); }
INLINE V within(V x) { return larger(smaller(x, all(88)), all(-87)); }  // where e^x is an ordinary number
INLINE V reciprocal(V x) { return all(1) / x; }
#endif

// 2^k times a polynomial on half a power of two to both sides, the best of degree 5: 2e-7 relative.
INLINE V exp_(V x) {
    x = within(x);
    const V k = rounded(x * 1.44269504088896341f);
    V r = x * 1.44269502162933349609f - k;
    r = r + x * 1.925963033500011079e-08f;
    V p = all(0.001327647129073739f);
    p = p * r + 0.009675540961325169f;
    p = p * r + 0.05550713092088699f;
    p = p * r + 0.24022120237350464f;
    p = p * r + 0.6931469440460205f;
    p = p * r + 1.0f;
    return scaled(p, k);
}

// A quotient of two polynomials, as in Eigen; a few units in the last place.
INLINE V tanh_(V x) {
    x = larger(smaller(x, all(7.90531110763549805f)), all(-7.90531110763549805f));
    const V s = x * x;
    V p = all(-2.76076847742355e-16f);
    p = p * s + 2.00018790482477e-13f;
    p = p * s + -8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    V q = all(1.19825839466702e-06f);
    q = q * s + 1.18534705686654e-04f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    return p * x * reciprocal(q);
}
INLINE V sigmoid(V x) { return reciprocal(all(1) + exp_(-x)); }
// Abramowitz and Stegun 7.1.26: 1.5e-7 absolute.
INLINE V erf_(V x) {
    const V a = x < all(0) ? -x : x;
    const V t = reciprocal(a * 0.3275911f + all(1));
    V p = all(1.061405429f);
    p = p * t + -1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t + -0.284496736f;
    p = p * t + 0.254829592f;
    const V y = all(1) - p * t * exp_(-a * a);
    return x < all(0) ? -y : y;
}
#endif

INLINE V relu(V x) { return larger(x, all(0)); }
INLINE V step(V x) { return x > all(0) ? all(1) : all(0); }
INLINE V log_(V x) { return each(x, [](R a) { return std::log(a); }); }
INLINE V sin_(V x) { return each(x, [](R a) { return std::sin(a); }); }
INLINE V cos_(V x) { return each(x, [](R a) { return std::cos(a); }); }
INLINE V root(V x) { return each(x, [](R a) { return std::sqrt(a); }); }
INLINE V reciprocal_root(V x) { return each(x, [](R a) { return R(1) / std::sqrt(a); }); }
INLINE V silu(V x) { return x * sigmoid(x); }
INLINE V silu_slope(V x) {
    const V s = sigmoid(x);
    return s * (all(1) + x * (all(1) - s));
}
INLINE V gelu(V x) { return x * R(0.5) * (all(1) + erf_(x * R(0.70710678118654752440))); }
INLINE V gelu_slope(V x) {
    return (all(1) + erf_(x * R(0.70710678118654752440))) * R(0.5) + x * exp_(x * x * R(-0.5)) * R(0.39894228040143267794);
}
INLINE V gelu_tanh(V x) { return x * R(0.5) * (all(1) + tanh_((x + x * x * x * R(0.044715)) * R(0.79788456080286535588))); }
INLINE V gelu_tanh_slope(V x) {
    const V t = tanh_((x + x * x * x * R(0.044715)) * R(0.79788456080286535588));
    const V inner = (all(1) + x * x * R(3 * 0.044715)) * R(0.79788456080286535588);
    return (all(1) + t) * R(0.5) + x * R(0.5) * (all(1) - t * t) * inner;
}
