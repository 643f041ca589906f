// --- a buffer of so many numbers ---

#ifdef CHECKED  // a text that is tried out: it ends where it leaves a buffer
#include <cstdio>
#include <cstdlib>
static void within(int64_t first, int64_t count, int64_t size) {
    if (first >= 0 && first + count <= size) return;
    std::fprintf(stderr, "%lld numbers from %lld on, in a buffer of %lld\n", (long long)count, (long long)first, (long long)size);
    std::abort();
}
template <class T, int64_t SIZE> struct Array {
    T* start;
    T& operator[](int64_t q) const {
        within(q, 1, SIZE);
        return start[q];
    }
};
template <int COUNT, class T, int64_t SIZE> static Array<T, COUNT> part(const Array<T, SIZE>& buffer, int64_t first) {
    within(first, COUNT, SIZE);
    return {buffer.start + first};
}
template <class T, int64_t SIZE> static T* address(const Array<T, SIZE>& buffer) { return buffer.start; }
#else
template <class T, int64_t> using Array = T*;
// Some numbers of a buffer that lie side by side.
template <int COUNT, class T> INLINE T* part(T* buffer, int64_t first) { return buffer + first; }
template <class T> INLINE T* address(T* buffer) { return buffer; }
#endif
