// What generated CUDA C stands on: words that a device has, and a block of threads that works on one sample.
#ifdef __CUDACC_RTC__  // a compiler without a library
typedef int int32_t;
typedef long long int64_t;
typedef unsigned int uint32_t;
namespace std {
using ::exp, ::tanh, ::erf, ::sqrt, ::pow, ::log, ::sin, ::cos, ::memcpy;
}
#else
#include <cmath>
#include <cstdint>
#include <cstring>
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS_OF_BLOCK, 1)
#define FUNCTION static __device__
#define CONSTANT static __device__ const
#define INLINE static __device__ __forceinline__
#define __restrict  // others write what is read here, in the same kernel: no promise that nobody does

#define GRID_THREAD ((int64_t)blockIdx.x * blockDim.x + threadIdx.x)
#define GRID_THREADS ((int64_t)gridDim.x * blockDim.x)

// Neighbouring threads have neighbours, and every block has some: so all of them bring a few numbers from afar.
#define SPREAD_THREAD (((int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x) * 32 + threadIdx.x % 32)

// A graph says always the same; which update is meant is said by a number that the graph's last kernel raises.
#define TURN c->team[0]

// Of what the host gave, and it did give: what is known of an address makes its loads quicker.
template <class T> INLINE T* in_device(T* address) {
    __builtin_assume(__isGlobal(address));
    return address;
}

namespace paceline {  // whose words hide those that the compiler has of the same name
