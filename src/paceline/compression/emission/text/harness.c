
/* Beside a network in a library: many samples, and the time of each call. */
#ifndef _POSIX_C_SOURCE
#error "compile with -D_POSIX_C_SOURCE=200809L"
#endif
#include <time.h>

void net_run_all(const float *inputs, int64_t count, float *outputs);
void net_run_all(const float *inputs, int64_t count, float *outputs) {
    for (int64_t k = 0; k < count; k++) net_run(inputs + k * NET_INPUTS, outputs + k * NET_OUTPUTS);
}

void net_time(const float *inputs, int64_t samples, int64_t calls, int64_t *nanoseconds);
void net_time(const float *inputs, int64_t samples, int64_t calls, int64_t *nanoseconds) {
    float output[NET_OUTPUTS];
    for (int64_t k = 0; k < calls; k++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        net_run(inputs + k % samples * NET_INPUTS, output);
        clock_gettime(CLOCK_MONOTONIC, &end);
        nanoseconds[k] = (end.tv_sec - begin.tv_sec) * 1000000000LL + (end.tv_nsec - begin.tv_nsec);
    }
}
