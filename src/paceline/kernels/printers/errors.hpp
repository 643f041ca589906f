// --- losses of a score and its target: the value, and its slope by the score ---

INLINE V size_of(V x) { return x < all(0) ? -x : x; }
INLINE V sign_of(V x) { return x > all(0) ? all(1) : x < all(0) ? all(-1) : all(0); }

struct squared_error {
    INLINE V value(V s, V y, R) { return (s - y) * (s - y); }
    INLINE V slope(V s, V y, R) { return (s - y) * R(2); }
};
struct absolute_error {
    INLINE V value(V s, V y, R) { return size_of(s - y); }
    INLINE V slope(V s, V y, R) { return sign_of(s - y); }
};
struct smooth_error {
    INLINE V value(V s, V y, R beta) {
        const V gap = s - y, size = size_of(gap);
        return size < all(beta) ? gap * gap * (R(0.5) / beta) : size - R(0.5) * beta;
    }
    INLINE V slope(V s, V y, R beta) {
        const V gap = s - y;
        return size_of(gap) < all(beta) ? gap / beta : sign_of(gap);
    }
};
struct huber_error {
    INLINE V value(V s, V y, R delta) {
        const V gap = s - y, size = size_of(gap);
        return size < all(delta) ? gap * gap * R(0.5) : (size - R(0.5) * delta) * delta;
    }
    INLINE V slope(V s, V y, R delta) {
        const V gap = s - y;
        return size_of(gap) < all(delta) ? gap : sign_of(gap) * delta;
    }
};
struct binary_cross_entropy {
    INLINE V value(V s, V y, R) {
        return relu(s) - s * y + each(exp_(-size_of(s)), [](R a) { return std::log1p(a); });
    }
    INLINE V slope(V s, V y, R) { return sigmoid(s) - y; }
};
// Of shares from 0 to 1; a logarithm counts as no less than -100, as in PyTorch.
struct share_entropy {
    INLINE V part(V x) { return larger(each(x, [](R a) { return std::log(a); }), all(-100)); }
    INLINE V value(V s, V y, R) { return -(y * part(s) + (all(1) - y) * part(all(1) - s)); }
    INLINE V slope(V s, V y, R) { return (s - y) / larger(s * (all(1) - s), all(R(1e-12))); }
};
