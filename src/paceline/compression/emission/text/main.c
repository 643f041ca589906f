
#if !defined(NET_LIBRARY) && !defined(NET_NO_MAIN)
#include <stdio.h>

/* Computes the samples that are kept here, and compares the results with the recorded ones, bit for bit. */
int main(void) {
    int wrong = 0;
    for (int sample = 0; sample < NET_TESTS; sample++) {
        int32_t scores[NET_OUTPUTS];
        net_run_bytes(net_test_inputs[sample], scores);
        for (int k = 0; k < NET_OUTPUTS; k++) wrong += scores[k] != net_test_scores[sample][k];
    }
    printf(wrong ? "%d of %d results are wrong\n" : "the recorded results: %d wrong of %d\n", wrong,
           NET_TESTS * NET_OUTPUTS);
    return wrong != 0;
}
#endif
