// --- a worker at a server: gradient, push with pull, and the next lease, update after update ---

// What `runtime.engines.servers.port` and `algorithms.server` do in Python, over the same memory: locks, integers, versions, rows of the
// trace. The machines' answers are those of `algorithms.server.desk`, `shard` and `version_slots` as long as nothing unusual
// happens; whatever is unusual ends the call before it has changed anything, and Python continues from there.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum Stage { COMPUTE, PUSH, FINISH }; // what the worker does next with the batch in hand
enum Ended { MADE, NOT_FINITE, CANCELLED, TOO_LATE, UNTOLD };
enum Kind { COMPUTED = 1, APPLIED = 3 }; // of rows of the trace
enum { NONE = -1, DEAD = -1, OPEN = -1 };

// Integers that are kept twice (`workers.arena`): one store makes all changes valid, so a worker that is killed
// before it has changed nothing.
struct Integers {
    int64_t* flip;
    int64_t* copies[2];
    int64_t count;
};

static int64_t* begin(const Integers& kept) {
    int64_t* draft = kept.copies[1 - *kept.flip];
    std::memcpy(draft, kept.copies[*kept.flip], 8 * kept.count);
    return draft;
}

static void commit(const Integers& kept) { __atomic_store_n(kept.flip, 1 - *kept.flip, __ATOMIC_RELEASE); }

// A parameter: where it lies in every version, in bytes, and in padded memory, in numbers.
// Under IN_PLACE `state` and `count` are addresses of what this worker's own optimizer remembers of it.
struct Span {
    int64_t value, state[2], count, memory, present;
    int64_t place, rows, width, stride;
    int64_t group; // of the optimizer
};

struct Shard {
    Integers integers;
    char* const* versions; // the memory of each slot
    const Span* spans;
    int64_t parameters;
    int64_t lock, bytes;
    int64_t slots; // where the integers of the slots begin
    int64_t base, own; // the version that this worker computes with, and its slot
};

struct Desk {
    Integers integers;
    int64_t lock, batches;
    int64_t lease, gate; // where the integers of leases and of the gate begin
    int64_t bound;       // of a stale-synchronous gate, or OPEN
};

struct Server {
    Shard* shards;
    Desk desk;
    int64_t* const* doorbells; // of all workers
    int64_t* sent;             // of this worker's ring of rows
    const int64_t* taken;
    int64_t* rows;
    const int64_t* cancelled;
    const double* settings; // a row for each group of the optimizer, for each update that they were told of
    Clipping* clipping; // null where gradients are taken as they are
    void (*run)(const Call*); // computes gradients
    int64_t count, worker, workers;
    int64_t locks; // their descriptor
    int64_t room;  // rows of the ring
    int64_t spin, shortest, longest, deadline; // nanoseconds of waiting
    int64_t finite;                 // whether a loss that is not finite ends the call
    int64_t snapshots, checkpoints; // finished batches between two of them; 0 where there are none
    int64_t first, last; // the batches whose samples the call's order has
    int64_t until;       // when the call ends
    int64_t pace;        // settings of each update; 0 where all have the same
    int64_t since, told; // the updates whose settings are told; what counts is how many came before at a shard
    int64_t batch, stage, waited;
    int64_t pushed; // to how many shards the batch in hand was
    int64_t made, ended, lock;
    double loss, scale; // of the batch in hand
};

// --- locks ---

static bool lock_as(const Server& s, short kind, int64_t number) {
    struct flock wanted = {};
    wanted.l_type = kind, wanted.l_whence = SEEK_SET, wanted.l_start = number, wanted.l_len = 1;
    return fcntl((int)s.locks, F_SETLK, &wanted) == 0;
}

static void release(const Server& s, int64_t number) { lock_as(s, F_UNLCK, number); }

// Waits as `links.waiting` does where nobody rings: looks again and again, then sleeps an eighth of the time waited so far.
static bool take(Server& s, int64_t number, int64_t& waited) {
    waited = 0;
    if (lock_as(s, F_WRLCK, number)) return true;
    const int64_t start = now();
    while (!lock_as(s, F_WRLCK, number)) {
        waited = now() - start;
        if (waited < s.spin) continue;
        s.lock = number;
        if (__atomic_load_n(s.cancelled, __ATOMIC_ACQUIRE)) return s.ended = CANCELLED, false;
        if (waited > s.deadline) return s.ended = TOO_LATE, false;
        const int64_t eighth = waited / 8 > s.shortest ? waited / 8 : s.shortest;
        const timespec nap = {0, (long)(eighth < s.longest ? eighth : s.longest)};
        nanosleep(&nap, nullptr);
    }
    waited = now() - start;
    return true;
}

// --- rows of the trace ---

static bool has_room(const Server& s, int64_t rows) {
    return *s.sent + rows - __atomic_load_n(s.taken, __ATOMIC_ACQUIRE) <= s.room;
}

static void record(
    const Server& s, Kind kind, int64_t shard, int64_t base, int64_t version, int64_t start, int64_t waited, int64_t samples,
    int64_t bytes, double value
) {
    const int64_t row[] = {kind, s.worker, s.batch, shard, base, version, start, now(), waited, samples, bytes};
    const double floats[] = {value, -1.0};
    int64_t* place = s.rows + *s.sent % s.room * 13;
    std::memcpy(place, row, sizeof row);
    std::memcpy(place + 11, floats, sizeof floats);
    __atomic_store_n(s.sent, *s.sent + 1, __ATOMIC_RELEASE);
}

// --- a push ---

// The optimizer's settings after so many updates; null where nobody has told them yet.
static const double* settings_after(Server& s, int64_t updates) {
    if (!s.pace) return s.settings;
    if (updates >= s.told) return s.ended = UNTOLD, nullptr;
    return s.settings + (updates - s.since) * s.pace;
}

static Numbers numbers_of(const Call& c, const Server& s, const Span& span, const char* from, char* to) {
    Numbers n = {};
    n.old = (const R*)(from + span.value), n.fresh = (R*)(to + span.value);
    n.gradient = (const R*)c.gradients + span.place, n.pulled = n.own = (R*)c.weights + span.place;
    n.rows = span.rows, n.width = span.width, n.stride = span.stride;
#if IN_PLACE
    from = to = nullptr; // what is remembered is this worker's own
#else
    n.shared = s.workers > 1;
#endif
    for (int k = 0; k < STATES; k++) n.remembered[k] = (const R*)(from + span.state[k]), n.kept[k] = (R*)(to + span.state[k]);
    n.counted = (const float*)(from + span.count), n.counting = (float*)(to + span.count);
    n.noted = (const R*)(from + span.memory), n.noting = (R*)(to + span.memory);
    return n;
}

#if IN_PLACE
// All workers write into one memory, and none keeps the others out: no version, no lock, no order. What others have written
// since this worker's last push is read here.
static bool push(const Call& c, Server& s, int64_t number) {
    const Shard& shard = s.shards[number];
    const int64_t start = now();
    char* memory = shard.versions[0];
    const double* settings = settings_after(s, s.batch);
    if (!settings) return false;
    for (const Span* span = shard.spans; span < shard.spans + shard.parameters; span++) {
        Numbers n = numbers_of(c, s, *span, memory, memory);
        n.present = true;
        step(settings + span->group * SETTINGS, R(s.scale), n);
    }
    record(s, APPLIED, number, NONE, NONE, start, 0, 0, 0, 0.0);
    shard.integers.copies[*shard.integers.flip][1 + s.workers + s.worker] = s.batch;
    return true;
}
#else
// The next version, made from the newest in a slot that nobody reads, and in padded memory, where this worker computes with
// it: one pass over both.
static void make_version(
    const Call& c, const Server& s, const Shard& shard, const double* settings, const char* from, char* to
) {
    for (const Span* span = shard.spans; span < shard.spans + shard.parameters; span++) {
        Numbers n = numbers_of(c, s, *span, from, to);
        n.present = *(const int64_t*)(from + span->present);
        *(int64_t*)(to + span->present) = REMEMBERS;
        step(settings + span->group * SETTINGS, R(s.scale), n);
    }
}

static bool push(const Call& c, Server& s, int64_t number) {
    Shard& shard = s.shards[number];
    const int64_t start = now();
    int64_t waited;
    if (!take(s, shard.lock, waited)) return false;
    int64_t* state = begin(shard.integers);
    const double* settings = settings_after(s, state[0]);
    if (!settings) {
        release(s, shard.lock);
        return false;
    }
    const int64_t base = state[1 + s.worker], version = state[0] + 1;
    state[0] = state[1 + s.worker] = version;
    state[1 + s.workers + s.worker] = s.batch;
    int64_t *newest = state + shard.slots, *spare = newest + 1, *own = newest + 2 + s.worker;
    const int64_t source = *newest, target = *own == source ? *spare : *own;
    if (*own == source) *spare = source;
    *newest = *own = target;
    make_version(c, s, shard, settings, shard.versions[source], shard.versions[target]);
    // Before the commit: no version without its row.
    record(s, APPLIED, number, base, version, start, waited, 0, shard.bytes, 0.0);
    commit(shard.integers);
    release(s, shard.lock);
    shard.base = version, shard.own = target;
    return true;
}
#endif

// --- the desk ---

// Whether Python has to finish this batch: something is due after it, a batch was lost, none is left, or the gate is shut.
static bool unusual(const Server& s, const int64_t* state) {
    const int64_t finished = state[1] + 1;
    if (state[2] || state[3] || state[0] >= s.desk.batches || finished >= s.desk.batches) return true;
    if (state[s.desk.lease + s.worker] != s.batch) return true;
    if (s.snapshots && finished % s.snapshots == 0) return true;
    if (s.checkpoints && finished % s.checkpoints == 0) return true;
    if (s.desk.bound == OPEN) return false;
    const int64_t* clocks = state + s.desk.gate + 1;
    const int64_t mine = clocks[s.worker] + 1;
    int64_t slowest = mine;
    for (int64_t worker = 0; worker < s.workers; worker++)
        if (worker != s.worker && clocks[worker] != DEAD && clocks[worker] < slowest) slowest = clocks[worker];
    return mine - slowest > s.desk.bound;
}

static void ring(int64_t* doorbell) {
    if (!__atomic_load_n(&doorbell[0], __ATOMIC_SEQ_CST)) return;
    __atomic_store_n(&doorbell[1], now(), __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &doorbell[1], 1, INT32_MAX, nullptr, nullptr, 0);
}

// Finishes the batch in hand and leases the next one; false where Python has to, and nothing was changed.
static bool finish(Server& s) {
    int64_t waited;
    if (!take(s, s.desk.lock, waited)) return false;
    const Integers& kept = s.desk.integers;
    if (unusual(s, kept.copies[*kept.flip])) {
        release(s, s.desk.lock);
        return false;
    }
    int64_t* state = begin(kept);
    state[1]++;
    if (s.desk.bound != OPEN) state[s.desk.gate + 1 + s.worker]++;
    const int64_t next = state[s.desk.lease + s.worker] = state[0]++;
    commit(kept);
    release(s, s.desk.lock);
    // A worker that waits at the gate may ask again.
    for (int64_t worker = 0; worker < s.workers; worker++) ring(s.doorbells[worker]);
    s.batch = next;
    return true;
}

// --- the call ---

static void compute(const Call& c, const Server& s, Note& note) {
    const int64_t begin = (s.batch - s.first) * c.batch;
    Call one = c;
    one.order += begin;
    one.samples = one.batch = c.batch < c.samples - begin ? c.batch : c.samples - begin;
    one.first = s.batch;
    one.notes = &note;
    std::memset((void*)one.team, 0, TEAM);
    s.run(&one);
}

extern "C" void paceline_serve(const Call* call, Server* server) {
    Server& s = *server;
    for (int64_t start = now(); start < s.until; start = now()) {
        if (s.batch < s.first || s.batch >= s.last || !has_room(s, 1 + s.count)) return;
        Note note = {};
        compute(*call, s, note);
        if (s.finite && !std::isfinite(note.loss)) return (void)(s.ended = NOT_FINITE, s.loss = note.loss);
        const int64_t left = call->samples - (s.batch - s.first) * call->batch;
        record(s, COMPUTED, -1, s.shards[0].base, -1, start, s.waited, left < call->batch ? left : call->batch, 0, note.loss);
        s.waited = 0;
        s.stage = PUSH;
        s.loss = note.loss;
        s.scale = s.clipping ? s.clipping->scale(s.clipping, call->gradients) : 1.0;
        for (s.pushed = 0; s.pushed < s.count; s.pushed++)
            if (!push(*call, s, (s.worker + s.pushed) % s.count)) return;
        s.made++;
        s.stage = FINISH;
        if (!finish(s)) return;
        s.stage = COMPUTE;
    }
}
