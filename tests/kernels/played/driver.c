// A driver that says what it is asked to do, and does nothing: for the calls of cuda-core, which has to find one.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#define OK 0
#define SAY(...) (fprintf(stderr, __VA_ARGS__), fflush(stderr))
typedef int R;
typedef struct { unsigned id; char pad[4]; union { char room[64]; struct { unsigned x, y, z; } cluster; int flag; } value; } Attribute;
typedef struct { unsigned gx, gy, gz, bx, by, bz, shared; void* stream; Attribute* attrs; unsigned count; } Config;

R cuInit(unsigned f) { return OK; }
R cuDriverGetVersion(int* v) { *v = 13000; return OK; }
R cuDeviceGetCount(int* n) { *n = 2; return OK; }
R cuDeviceGet(int* d, int n) { *d = n; return OK; }
R cuDeviceGetName(char* name, int n, int d) { strncpy(name, "a played H100", n); return OK; }
R cuDeviceGetAttribute(int* v, int a, int d) {
    switch (a) {
        case 75: *v = 9; break;
        case 76: *v = 0; break;
        case 16: *v = 132; break;
        case 97: *v = 232448; break;
        case 95: *v = 1; break;
        default: *v = 1;
    }
    return OK;
}
R cuDevicePrimaryCtxRetain(void** c, int d) { *c = (void*)(intptr_t)(0x1000 + d); return OK; }
R cuDevicePrimaryCtxRelease_v2(int d) { return OK; }
static void* now;
R cuCtxSetCurrent(void* c) { now = c; SAY("current %p\n", c); return OK; }
R cuCtxGetCurrent(void** c) { *c = now; return OK; }
R cuCtxPushCurrent_v2(void* c) { now = c; return OK; }
R cuCtxPopCurrent_v2(void** c) { *c = now; return OK; }
R cuCtxGetDevice(int* d) { *d = (int)((intptr_t)now - 0x1000); return OK; }
R cuCtxGetDevice_v2(int* d, void* c) { *d = (int)((intptr_t)(c ? c : now) - 0x1000); return OK; }
R cuCtxGetId(void* c, unsigned long long* id) { *id = 7; return OK; }
R cuStreamGetCtx(void* s, void** c) { *c = now; return OK; }
R cuStreamGetDevice(void* s, int* d) { return cuCtxGetDevice(d); }
R cuStreamGetCtx_v2(void* s, void** c, void** g) { *c = now; *g = 0; return OK; }
R cuGetErrorName(R e, const char** s) { *s = "AN_ERROR"; return OK; }
R cuGetErrorString(R e, const char** s) { *s = "an error"; return OK; }
R cuLibraryLoadData(void** l, const void* code, void* a, void* b, unsigned n, void* c, void* d, unsigned m) { *l = (void*)0x2000; SAY("library %.4s\n", (const char*)code + 0); return OK; }
R cuLibraryUnload(void* l) { return OK; }
R cuLibraryGetKernel(void** k, void* l, const char* name) { static intptr_t next = 0x3000; *k = (void*)next++; SAY("kernel %s = %p\n", name, *k); return OK; }
R cuKernelSetAttribute(int a, int v, void* k, int d) { SAY("attribute %d = %d of %p on %d\n", a, v, k, d); return OK; }
R cuKernelGetAttribute(int* v, int a, void* k, int d) { *v = 1; return OK; }
R cuKernelGetFunction(void** f, void* k) { *f = k; SAY("function %p\n", k); return OK; }
R cuKernelGetLibrary(void** l, void* k) { *l = (void*)0x2000; return OK; }
R cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, void* k, int t, size_t s) { SAY("occupancy %p %d %zu\n", k, t, s); *n = 1; return OK; }
R cuOccupancyMaxActiveClusters(int* n, void* k, const Config* c) { SAY("clusters %p grid %u cluster %u shared %u\n", k, c->gx, c->attrs[0].value.cluster.x, c->shared); *n = 3; return OK; }
R cuLaunchKernelEx(const Config* c, void* f, void** p, void** e) {
    SAY("launch %p grid %u block %u shared %u stream %p attrs %u:", f, c->gx, c->bx, c->shared, c->stream, c->count);
    for (unsigned k = 0; k < c->count; k++) SAY(" %u=%u", c->attrs[k].id, c->attrs[k].value.cluster.x);
    SAY(" params %lld %lld %lld\n", *(long long*)p[0], *(long long*)p[1], *(long long*)p[2]);
    return OK;
}
static R unknown(void) { SAY("something unknown\n"); return 801; }
R cuGetProcAddress_v2(const char* name, void** f, int v, uint64_t flags, int* status) {
    char other[200];
    snprintf(other, sizeof other, "%s_v2", name);
    void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    *f = dlsym(self, name);
    if (!*f) *f = dlsym(self, other);
    if (!*f) *f = (void*)unknown;
    if (status) *status = 0;
    return OK;
}
R cuGetProcAddress(const char* name, void** f, int v, uint64_t flags) { return cuGetProcAddress_v2(name, f, v, flags, 0); }
