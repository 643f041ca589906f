
#if !defined(NET_LIBRARY) && !defined(NET_NO_MAIN)
#include <stdio.h>

/* Computes the samples that are kept here, and compares the results with the recorded ones, but for rounding. */
int main(void) {
    int wrong = 0;
    for (int sample = 0; sample < NET_TESTS; sample++) {
        float output[NET_OUTPUTS];
        net_run(net_test_inputs[sample], output);
        for (int k = 0; k < NET_OUTPUTS; k++) {
            float apart = output[k] - NET_FROM_FIRST * output[0] - net_test_outputs[sample][k];
            wrong += !(apart < NET_TOLERANCE && apart > -NET_TOLERANCE);
        }
    }
    printf(wrong ? "%d of %d results are wrong\n" : "the recorded results: %d wrong of %d\n", wrong,
           NET_TESTS * NET_OUTPUTS);
    return wrong != 0;
}
#endif
