// What generated C++ stands on: the libraries it uses, and how a thread of a team behaves.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__x86_64__)
#include <xmmintrin.h>  // all that is needed without AVX-512, in a tenth of the compiler's time
#endif
#include <sched.h>
#include <time.h>

#define FUNCTION static
#define CONSTANT static const
#ifdef CHECKED  // a text that is tried out is compiled often, and need not be fast
#define INLINE static inline
#else
#define INLINE static inline __attribute__((always_inline))
#endif

// A long text is compiled in two parts: each has half of the steps, and the first all else that is not inline.
#ifdef PART
#define STEP __attribute__((noinline, visibility("hidden"))) void
#define IN_PART(number) (PART == number)
#else
#define STEP static __attribute__((noinline)) void
#define IN_PART(number) 1
#endif

// --- threads ---

// Spins for a while, for a batch takes microseconds; then lets others have the core.
INLINE void wait_a_little(int64_t spins) {
    if (spins > 2000) sched_yield();
#if defined(__x86_64__)
    else _mm_pause();
#endif
}

// Nanoseconds of the monotonic clock, which Python's perf_counter_ns reads too.
INLINE int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// Denormal numbers are zero while we compute: they are slow, and gradients that small mean nothing.
struct FlushDenormals {
#if defined(__x86_64__) && !DOUBLE
    unsigned before = _mm_getcsr();
    FlushDenormals() { _mm_setcsr(before | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(before); }
#endif
};
