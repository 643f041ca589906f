// Two processes on two cores take turns. In its turn each reads what the other has written last, and writes its own slot:
// the memory traffic of a push.
#include <algorithm>
#include <cstdint>
#include <sched.h>
#include <time.h>
#include <vector>

static int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static double median(std::vector<double>& found) {
    std::nth_element(found.begin(), found.begin() + found.size() / 2, found.end());
    return found[found.size() / 2];
}

extern "C" void pin(int core) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(core, &only);
    sched_setaffinity(0, sizeof only, &only);
}

static void await(const volatile int64_t* turn, int64_t mine) {
    for (int spins = 0; *turn % 2 != mine; spins++)
        if (spins > 10000) sched_yield(), spins = 0;
}

// Nanoseconds from giving the turn to getting it back, with one cache line between the cores.
extern "C" double round_trip(volatile int64_t* turn, int64_t mine, int64_t rounds) {
    std::vector<double> found;
    int64_t before = now();
    for (int64_t k = 0; k < rounds; k++) {
        await(turn, mine);
        const int64_t at = now();
        found.push_back(at - before);
        before = at;
        __atomic_store_n(turn, *turn + 1, __ATOMIC_SEQ_CST);
    }
    return median(found);
}

// Microseconds of one turn: as many numbers as a version has, read from the other's slot and written to this one; by plain
// stores, or a block at a time by stores that pass the caches.
extern "C" double push(
    volatile int64_t* turn, int64_t mine, int64_t rounds, const float* theirs, float* own, int64_t count, int64_t streamed
) {
    enum { BLOCK = 512 };
    std::vector<double> found;
    std::vector<float> gradient(count, 1e-9f), other(150000, 1.0f);
    for (int64_t k = 0; k < rounds; k++) {
        for (float& x : other) x = x * 0.5f + 1.0f; // what a worker touches between two pushes
        await(turn, mine);
        const int64_t start = now();
        for (int64_t from = 0; from < count; from += BLOCK) {
            const int64_t size = std::min<int64_t>(BLOCK, count - from);
            float block[BLOCK], *to = streamed ? block : own + from;
            for (int64_t i = 0; i < size; i++) to[i] = theirs[from + i] - 0.1f * gradient[from + i];
            if (streamed) stream(own + from, block, size);
        }
        found.push_back((now() - start) / 1e3);
        __atomic_store_n(turn, *turn + 1, __ATOMIC_SEQ_CST);
    }
    return median(found);
}
