
ALWAYS __m512i scaled_lanes(const Layer *l, int channel, __m512i sum) {
    if (!l->factor)
        return _mm512_srai_epi32(_mm512_add_epi32(sum, _mm512_set1_epi32(1 << (l->shift - 1))), (unsigned)l->shift);
    __m512i factor = _mm512_loadu_si512(l->factor + channel);
    __m512i half = _mm512_set1_epi64((int64_t)1 << (l->shift - 1));
    __m512i even = _mm512_add_epi64(_mm512_mul_epi32(sum, factor), half);
    __m512i odd = _mm512_mul_epi32(_mm512_srli_epi64(sum, 32), _mm512_srli_epi64(factor, 32));
    odd = _mm512_srai_epi64(_mm512_add_epi64(odd, half), (unsigned)l->shift);
    even = _mm512_srai_epi64(even, (unsigned)l->shift);
    return _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}

ALWAYS __m128i bytes_of(const Layer *l, int channel, __m512i sum) {
    __m512i found = _mm512_add_epi32(scaled_lanes(l, channel, sum), _mm512_set1_epi32(l->zero));
    found = _mm512_max_epi32(found, _mm512_set1_epi32(l->low));
    return _mm512_cvtusepi32_epi8(found);
}

ALWAYS __m512i looked_up(const Layer *l, __m512i bytes) {
    if (!l->table) return bytes;
    __m512i lower = _mm512_permutex2var_epi8(_mm512_loadu_si512(l->table), bytes, _mm512_loadu_si512(l->table + 64));
    __m512i upper =
        _mm512_permutex2var_epi8(_mm512_loadu_si512(l->table + 128), bytes, _mm512_loadu_si512(l->table + 192));
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), lower, upper);
}

/* Sixteen channels of up to four pixels, which lie `apart`, or four times sixteen channels of one. */
ALWAYS void put_bytes(const Layer *l, int channel, int next, const __m512i *sum, int count, uint8_t *y, int apart) {
    __m512i all = _mm512_setzero_si512();
    all = _mm512_inserti32x4(all, bytes_of(l, channel, sum[0]), 0);
    if (count > 1) all = _mm512_inserti32x4(all, bytes_of(l, channel + next, sum[1]), 1);
    if (count > 2) all = _mm512_inserti32x4(all, bytes_of(l, channel + 2 * next, sum[2]), 2);
    if (count > 3) all = _mm512_inserti32x4(all, bytes_of(l, channel + 3 * next, sum[3]), 3);
    all = looked_up(l, all);
    int rest = l->outputs - channel;
    if (next) {
        rest = rest > 64 ? 64 : rest;
        _mm512_mask_storeu_epi8(y, ~(uint64_t)0 >> (64 - rest), all);
        return;
    }
    __mmask16 kept = (__mmask16)(rest >= 16 ? 0xFFFF : (1 << rest) - 1);
    _mm_mask_storeu_epi8(y, kept, _mm512_extracti32x4_epi32(all, 0));
    if (count > 1) _mm_mask_storeu_epi8(y + apart, kept, _mm512_extracti32x4_epi32(all, 1));
    if (count > 2) _mm_mask_storeu_epi8(y + 2 * apart, kept, _mm512_extracti32x4_epi32(all, 2));
    if (count > 3) _mm_mask_storeu_epi8(y + 3 * apart, kept, _mm512_extracti32x4_epi32(all, 3));
}
