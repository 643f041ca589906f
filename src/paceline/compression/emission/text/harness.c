/* Linked to a network in a library: many samples, and the time of each call. */
#include <stdint.h>
#include <time.h>

#ifdef NET_TOKENS
typedef int32_t Input;
#else
typedef float Input;
#endif

void net_run(const Input *input, float *output);
void net_run_all(const Input *inputs, int64_t count, int64_t size, int64_t results, float *outputs);
void net_time(const Input *inputs, int64_t count, int64_t size, float *output, int64_t calls, int64_t *nanoseconds);

void net_run_all(const Input *inputs, int64_t count, int64_t size, int64_t results, float *outputs) {
    for (int64_t k = 0; k < count; k++) net_run(inputs + k * size, outputs + k * results);
}

void net_time(const Input *inputs, int64_t count, int64_t size, float *output, int64_t calls, int64_t *nanoseconds) {
    for (int64_t k = 0; k < calls; k++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        net_run(inputs + k % count * size, output);
        clock_gettime(CLOCK_MONOTONIC, &end);
        nanoseconds[k] = (end.tv_sec - begin.tv_sec) * 1000000000LL + (end.tv_nsec - begin.tv_nsec);
    }
}
