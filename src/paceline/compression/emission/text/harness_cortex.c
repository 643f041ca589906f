/* A program for QEMU's mps2-an386: computes the file's samples, counts instructions and the bytes of the stack. */
#include "net.c"

#define SYSTICK ((volatile uint32_t *)0xE000E010) /* control, reload, value */
enum { RUNS = 10, PAINTED = 2048, NANOSECONDS = 40 /* of a tick; an instruction takes one, as QEMU is told */ };

extern uint32_t stack_end[];
void begin(void);
int main_of_harness(void);

__attribute__((section(".vectors"), used)) static const void *const vectors[2] = {stack_end, (const void *)begin};

static void call_host(int what, const void *with) {
    register int number __asm__("r0") = what;
    register const void *argument __asm__("r1") = with;
    __asm__ volatile("bkpt 0xAB" : "+r"(number) : "r"(argument) : "memory");
}

static void say(const char *name, uint32_t number) {
    char line[40];
    int at = 39;
    line[at] = 0;
    line[--at] = '\n';
    do line[--at] = (char)('0' + number % 10); while (number /= 10);
    line[--at] = ' ';
    call_host(4, name);
    call_host(4, line + at);
}

static uint32_t __attribute__((noinline)) stack_used(int32_t *scores) {
    volatile uint8_t painted[PAINTED];
    for (int k = 0; k < PAINTED; k++) painted[k] = 0xA5;
    (void)scores;
    return (uint32_t)(uintptr_t)painted;
}

int main_of_harness(void) {
    static int32_t scores[NET_OUTPUTS];
    uint32_t wrong = 0;
    for (int sample = 0; sample < NET_TESTS; sample++) {
        net_run_bytes(net_test_inputs[sample], scores);
        for (int k = 0; k < NET_OUTPUTS; k++) wrong += scores[k] != net_test_scores[sample][k];
    }
    const volatile uint8_t *painted = (const volatile uint8_t *)(uintptr_t)stack_used(scores);
    net_run_bytes(net_test_inputs[0], scores);
    uint32_t untouched = 0;
    while (untouched < PAINTED && painted[untouched] == 0xA5) untouched++;
    SYSTICK[1] = 0xFFFFFF;
    SYSTICK[2] = 0;
    SYSTICK[0] = 5; /* on, by the processor's clock, without interrupts */
    uint32_t before = SYSTICK[2];
    for (int run = 0; run < RUNS; run++) net_run_bytes(net_test_inputs[0], scores);
    uint32_t ticks = (before - SYSTICK[2]) & 0xFFFFFF;
    say("wrong", wrong);
    say("stack", PAINTED - untouched);
    say("instructions", ticks * NANOSECONDS / RUNS);
    return 0;
}

void begin(void) {
    main_of_harness();
    call_host(0x18, (const void *)0x20026); /* the end of the program */
    for (;;) {
    }
}
