// --- numbers that other cores will read ---

// Stores that pass this core's caches by. A line that another core has read is shared; to make it this core's own again
// takes a message to the others, and on some processors the stores of a loop wait for these one by one: 28 ns a line,
// 96 us for 220 KB, where such stores take 5. `benchmarks/slow_copies` measures both.
#if defined(__SSE2__)
#include <emmintrin.h>

static void stream(R* to, const R* from, int64_t count) {
    enum { LINE = 64 };
    while (count && (uintptr_t)to % LINE) *to++ = *from++, count--;
    for (; count >= LINE / (int64_t)sizeof(R); count -= LINE / sizeof(R), to += LINE / sizeof(R), from += LINE / sizeof(R))
        for (int64_t part = 0; part < LINE / 16; part++)
            _mm_stream_si128((__m128i*)to + part, _mm_loadu_si128((const __m128i*)from + part));
    _mm_sfence(); // before what says that they lie ready
    while (count--) *to++ = *from++;
}
#else
static void stream(R* to, const R* from, int64_t count) { std::memcpy(to, from, sizeof(R) * count); }
#endif
