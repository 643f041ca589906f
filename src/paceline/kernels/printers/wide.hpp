// Neighbouring numbers of one sample, so many at once; where there are fewer left, the rest are zeros. They are named one by
// one: a copy to the stack and a wider load from there would wait for each other.
template <int N, int... Q> INLINE X some(Array<R, N> numbers, std::integer_sequence<int, Q...>) {
    return X{(Q < N ? numbers[Q] : R(0))...};
}
template <int N> INLINE X wide(Array<R, N> numbers) {
    const R* const from = address(numbers);
#if defined(__AVX512F__) && NEIGHBOURS == 16 && !DOUBLE
    if (N < NEIGHBOURS) return (X)_mm512_maskz_loadu_ps((1u << N) - 1, from);
#endif
    if (N < NEIGHBOURS) return some<N>(numbers, std::make_integer_sequence<int, NEIGHBOURS>());
    X x;
    std::memcpy(&x, from, sizeof x);
    return x;
}
template <int N> INLINE void put(Array<R, N> numbers, X x) {
    R* const to = address(numbers);
#if defined(__AVX512F__) && NEIGHBOURS == 16 && !DOUBLE
    if (N < NEIGHBOURS) return _mm512_mask_storeu_ps(to, (1u << N) - 1, (__m512)x);
#endif
    std::memcpy(to, &x, N * sizeof(R));
}
