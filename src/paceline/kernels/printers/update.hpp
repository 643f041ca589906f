// --- for optimizers, on any machine ---

INLINE R sign(R x) { return R(x > 0) - R(x < 0); }
INLINE R power(R x, int64_t n) { return R(std::pow((double)x, (double)n)); }
#if LANES > 1
INLINE R root(R x) { return std::sqrt(x); }
INLINE V sign(V x) { return (x > all(0) ? all(1) : V{}) - (x < all(0) ? all(1) : V{}); }
INLINE V power(V x, int64_t n) { return each(x, [n](R a) { return power(a, n); }); }
#endif

// A setting of a parameter group; where lanes are copies of the model, one for each.
INLINE W setting(const double* settings, int64_t group, int number) {
#if REPLICAS
    W w = W{};
    for (int l = 0; l < LANES; l++) set_lane(w, l, R(settings[(group * SETTINGS + number) * LANES + l]));
    return w;
#else
    return R(settings[group * SETTINGS + number]);
#endif
}
