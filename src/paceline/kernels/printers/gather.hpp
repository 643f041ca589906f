// --- ranks of MPI ---

#include <cstdint>

// MPI's function is handed in, with the handles that it wants: so the text is compiled without MPI's own compiler, and
// is the same for every MPI. A handle is a number or a pointer; in a register either is what the other would be.
typedef int (*Allgatherv)(const void*, int, intptr_t, void*, const int*, const int*, intptr_t, intptr_t);

static const int MOST_RANKS = 1024;
static struct {
    Allgatherv allgatherv;
    const void* in_place;
    intptr_t byte, world;
    int64_t rank, ranks;
} among = {nullptr, nullptr, 0, 0, 0, 1};

extern "C" void paceline_among(const void* given) { among = *(const decltype(among)*)given; }

static inline int first_part(int64_t parts) { return (int)(parts * among.rank / among.ranks); }
static inline int last_part(int64_t parts) { return (int)(parts * (among.rank + 1) / among.ranks); }

// Everybody has its own parts of `unit` bytes each, and gets all.
static void gather(void* buffer, int64_t parts, int64_t unit) {
    if (among.ranks == 1) return;
    int counts[MOST_RANKS], starts[MOST_RANKS];
    for (int64_t rank = 0; rank < among.ranks; rank++) {
        starts[rank] = (int)(parts * rank / among.ranks * unit);
        counts[rank] = (int)(parts * (rank + 1) / among.ranks * unit) - starts[rank];
    }
    among.allgatherv(among.in_place, 0, among.byte, buffer, counts, starts, among.byte, among.world);
}
