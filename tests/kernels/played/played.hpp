// A CPU plays a device: every thread of every block is a fibre, which runs until it waits. Who runs next is drawn, so that
// what only holds for one order of threads does not hold here. Where nobody can go on, the launch says so.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__  // which has to be told of every change of the stack
#include <sanitizer/common_interface_defs.h>
#else
static void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
static void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#endif

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__
#define __launch_bounds__(...)

struct Place3 {
    unsigned int x = 0, y = 0, z = 0;
};

namespace played {

enum Waits { NO, FOR_BLOCK, FOR_WARP, A_LITTLE, OVER };

struct Fibre {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Place3 block, thread;
    Waits waits = NO;
    double shuffled = 0;
};

enum { STACK = 1 << 18 };

struct World {
    std::vector<Fibre> fibres;
    std::vector<std::vector<double>> shared;
    Fibre* now = nullptr;
    ucontext_t home;
    const void* stack; // of home, and how long it is
    size_t length;
    Place3 grid, threads;
    void (*kernel)(const void*, int64_t, int64_t);
    const int64_t* arguments;
};

static World* world;

static void arrived(void* mine) { __sanitizer_finish_switch_fiber(mine, &world->stack, &world->length); }

static void wait(Waits what) {
    Fibre* const me = world->now;
    void* mine = nullptr;
    me->waits = what;
    __sanitizer_start_switch_fiber(what == OVER ? nullptr : &mine, world->stack, world->length);
    swapcontext(&me->context, &world->home);
    arrived(mine);
}

static void go_on(Fibre& fibre) {
    void* mine = nullptr;
    __sanitizer_start_switch_fiber(&mine, fibre.stack.get(), STACK);
    swapcontext(&world->home, &fibre.context);
    __sanitizer_finish_switch_fiber(mine, nullptr, nullptr);
}

static void run() {
    arrived(nullptr);
    world->kernel((const void*)world->arguments[0], world->arguments[1], world->arguments[2]);
    wait(OVER);
}

// All of a block, or of a warp, that wait go on together; threads that are over are waited for by nobody.
static bool let_go(size_t from, size_t to, Waits what) {
    bool any = false;
    for (size_t k = from; k < to; k++) {
        if (world->fibres[k].waits != what && world->fibres[k].waits != OVER) return false;
        any = any || world->fibres[k].waits == what;
    }
    for (size_t k = from; k < to; k++)
        if (world->fibres[k].waits == what) world->fibres[k].waits = NO;
    return any;
}

static double shuffled(double value, int mask) {
    Fibre* const me = world->now;
    me->shuffled = value;
    wait(FOR_WARP);
    const size_t number = me - world->fibres.data(), first = number / world->threads.x * world->threads.x;
    const double other = world->fibres[first + ((number - first) ^ mask)].shuffled;
    wait(FOR_WARP);
    return other;
}

}  // namespace played

#define threadIdx (played::world->now->thread)
#define blockIdx (played::world->now->block)
#define blockDim (played::world->threads)
#define gridDim (played::world->grid)
#define __syncthreads() played::wait(played::FOR_BLOCK)
#define __nanosleep(n) played::wait(played::A_LITTLE)
#define __threadfence()
#define __trap()
#define __isGlobal(address) true
#define __builtin_assume(known)
#define __shfl_xor_sync(all, value, mask) (decltype(value))played::shuffled(value, mask)

namespace paceline {  // what a text declares as an array of the block's is a function that knows whose it is
double (*shared_memory_of_block())[] { return (double (*)[])played::world->shared[blockIdx.x].data(); }
}
#define shared_memory (*shared_memory_of_block())

static void atomicAdd(unsigned long long* place, unsigned long long value) { *place += value; }

// 0, or 1 where threads wait for each other for ever.
extern "C" int played_launch(void* kernel, int64_t blocks, int64_t threads, int64_t shared, int64_t together, uint64_t seed,
                             const int64_t* arguments) {
    using namespace played;
    std::mt19937_64 chance(seed);
    for (int64_t first = 0; first < blocks; first += together ? blocks : 1) {
        World here;
        world = &here;
        here.kernel = (void (*)(const void*, int64_t, int64_t))kernel;
        here.arguments = arguments;
        here.grid.x = (unsigned int)blocks;
        here.threads.x = (unsigned int)threads;
        here.shared.assign(blocks, std::vector<double>(shared / 8 + 1, NAN));
        here.fibres = std::vector<Fibre>((together ? blocks : 1) * threads);
        for (size_t k = 0; k < here.fibres.size(); k++) {
            Fibre& fibre = here.fibres[k];
            fibre.block.x = (unsigned int)(first + k / threads);
            fibre.thread.x = (unsigned int)(k % threads);
            fibre.stack.reset(new char[STACK]);
            getcontext(&fibre.context);
            fibre.context.uc_stack.ss_sp = fibre.stack.get();
            fibre.context.uc_stack.ss_size = STACK;
            makecontext(&fibre.context, run, 0);
            fibre.context.uc_stack = {};  // which the sanitizer would clear of its marks at every change
        }
        std::vector<size_t> ready;
        for (;;) {
            ready.clear();
            bool over = true;
            for (size_t k = 0; k < here.fibres.size(); k++) {
                over = over && here.fibres[k].waits == OVER;
                if (here.fibres[k].waits == NO || here.fibres[k].waits == A_LITTLE) ready.push_back(k);
            }
            if (over) break;
            std::shuffle(ready.begin(), ready.end(), chance);
            bool moved = false;
            for (size_t k : ready) {
                Fibre* const fibre = here.now = &here.fibres[k];
                const bool span = fibre->waits == A_LITTLE;
                go_on(*fibre);
                moved = moved || !span || fibre->waits != A_LITTLE;
            }
            for (size_t block = 0; block < here.fibres.size(); block += threads) {
                moved = let_go(block, block + threads, FOR_BLOCK) || moved;
                for (size_t warp = block; warp < block + threads; warp += 32)
                    moved = let_go(warp, std::min<size_t>(warp + 32, block + threads), FOR_WARP) || moved;
            }
            if (!moved) return 1;
        }
    }
    return 0;
}
