// Neighbouring numbers of one sample, so many at once; where there are fewer left, the rest are zeros.
template <int N> INLINE X wide(Array<R, N> numbers) {
    const R* const from = address(numbers);
    X x = X{};
#if defined(__AVX512F__) && NEIGHBOURS == 16 && !DOUBLE
    if (N < NEIGHBOURS) return (X)_mm512_maskz_loadu_ps((1u << N) - 1, from);
#endif
    std::memcpy(&x, from, N * sizeof(R));
    return x;
}
template <int N> INLINE void put(Array<R, N> numbers, X x) {
    R* const to = address(numbers);
#if defined(__AVX512F__) && NEIGHBOURS == 16 && !DOUBLE
    if (N < NEIGHBOURS) return _mm512_mask_storeu_ps(to, (1u << N) - 1, (__m512)x);
#endif
    std::memcpy(to, &x, N * sizeof(R));
}
