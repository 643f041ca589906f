// --- between the gradient and the step of an update: the sum of all workers' gradients, or a mixture of weights ---

// A collective's table, walked over the vectors, the counters and the doorbells of `links.shared_memory`: what one
// worker does here and another in Python fits together, step by step.
#include <sys/syscall.h>
#include <unistd.h>

// A parameter in a worker's vector, and its rows in the gradient, which are padded.
struct Place {
    int64_t to, from, rows, width, stride;
};

// A chunk of this worker's share of an update, and how many pairs of partial sums are added up once it is there.
struct Piece {
    int64_t samples, chunk, joins;
    double weight; // of its samples in the batch
};

// A step of the table: whom to offer to (NO_WORKER) and what has changed of it, whom to take from and what, and where that goes.
struct Move {
    int64_t to, first, last, from, start, stop, add, at;
};
enum { NO_WORKER = -1, ITSELF = -2 };

struct Peer {
    int64_t* offered;       // how often this worker has offered to the peer
    const int64_t* awaited; // how often the peer has offered to this worker
    int64_t* doorbell;      // the peer's
    const R* vectors[2];    // the peer's
    int64_t offers, taken;  // as this worker counts them
};

enum Ended { MADE, NOT_FINITE, CANCELLED, TOO_LATE };

struct Exchange {
    const Place* places;
    const Move* moves;
    const Piece* pieces;
    Peer* peers;
    R* own;        // the vector while it changes: in memory of this worker
    R* vectors[2]; // where its peers read what it offers
    int64_t* doorbell;
    const int64_t *cancelled, *aborted;
    int64_t parameters, steps;
    int64_t chunks;              // of this worker in an update
    int64_t stride;              // from one partial sum in a vector to the next
    int64_t tail;                // the place of the flags, the loss and the weight in a vector
    int64_t number;              // of the next collective
    int64_t spin, nap, deadline; // nanoseconds
    int64_t finite;              // whether a loss that is not finite ends the call
    int64_t ended, whom;         // why the call ended, and whom it waited for
    double share;                // of every vector in a mixture of weights; 0 where gradients are summed
};

static bool ready(const Exchange& e, const Peer& peer) {
    return __atomic_load_n(peer.awaited, __ATOMIC_ACQUIRE) >= peer.taken || __atomic_load_n(e.aborted, __ATOMIC_ACQUIRE);
}

// Sleeps until rung, as `links.waiting` does: the flag is raised before the last look.
static void sleep_until_rung(const Exchange& e, const Peer& peer) {
    __atomic_store_n(&e.doorbell[0], 1, __ATOMIC_SEQ_CST);
    const int64_t seen = __atomic_load_n(&e.doorbell[1], __ATOMIC_SEQ_CST);
    if (!ready(e, peer)) {
        const timespec limit = {(time_t)(e.nap / 1000000000), (long)(e.nap % 1000000000)};
        syscall(SYS_futex, &e.doorbell[1], 0, (uint32_t)seen, &limit, nullptr, 0);
    }
    __atomic_store_n(&e.doorbell[0], 0, __ATOMIC_RELEASE);
}

static void offer(Peer& peer) {
    // In this order for all cores, so that either the flag is seen here or the offer is seen by the peer's last look.
    __atomic_store_n(peer.offered, ++peer.offers, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&peer.doorbell[0], __ATOMIC_SEQ_CST)) return;
    __atomic_store_n(&peer.doorbell[1], now(), __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &peer.doorbell[1], 1, INT32_MAX, nullptr, nullptr, 0);
}

// Waits until the peer has made the offer that is taken next.
static bool await(Exchange& e, int64_t whom, int64_t& waited) {
    Peer& peer = e.peers[whom];
    peer.taken++;
    if (__atomic_load_n(peer.awaited, __ATOMIC_ACQUIRE) >= peer.taken) return true;
    const int64_t start = now();
    while (!ready(e, peer) && now() - start < e.spin) wait_a_little(0);
    while (!ready(e, peer)) {
        e.whom = whom;
        if (__atomic_load_n(e.cancelled, __ATOMIC_ACQUIRE) && !ready(e, peer)) return e.ended = CANCELLED, false;
        if (now() - start > e.deadline) return e.ended = TOO_LATE, false;
        sleep_until_rung(e, peer);
    }
    waited += now() - start;
    if (__atomic_load_n(peer.awaited, __ATOMIC_ACQUIRE) >= peer.taken) return true;
    return e.ended = CANCELLED, false;
}

// The worker's own sum: the gradient times its weight, one flag per parameter, the loss and the weight.
static void write_vector(const Exchange& e, const R* __restrict gradient, R* __restrict vector, double loss, double share) {
    const R weight = R(share);
    for (const Place* p = e.places; p < e.places + e.parameters; p++)
        for (int64_t row = 0; row < p->rows; row++)
            for (int64_t q = 0; q < p->width; q++)
                vector[p->to + row * p->width + q] = gradient[p->from + row * p->stride + q] * weight;
    for (int64_t q = 0; q < e.parameters; q++) vector[e.tail + q] = R(1);
    vector[e.tail + e.parameters] = R(loss * share);
    vector[e.tail + e.parameters + 1] = R(share);
}

// Puts a chunk's gradient beside the partial sums so far, and adds those up that are two halves of one. False where its
// loss ends the call. Where it is the last of several, the note has the mean of their losses.
static bool add_piece(Exchange& e, const R* gradient, int64_t number, int64_t& sums, double& total, Note& note) {
    if (e.finite && !std::isfinite(note.loss)) return e.ended = NOT_FINITE, false;
    const Piece& piece = e.pieces[number];
    write_vector(e, gradient, e.own + sums++ * e.stride, note.loss, piece.weight);
    for (int64_t k = 0; k < piece.joins; k++) {
        const R* __restrict right = e.own + --sums * e.stride;
        R* __restrict left = e.own + (sums - 1) * e.stride;
        for (int64_t q = 0; q < e.tail + e.parameters + 2; q++) left[q] += right[q];
    }
    total += note.loss * piece.weight;
    if (number + 1 < e.chunks || number == 0) return true;
    double weight = 0;
    for (int64_t k = 0; k < e.chunks; k++) weight += e.pieces[k].weight;
    note.loss = total / weight;
    return true;
}

static void read_vector(const Exchange& e, R* __restrict gradient, const R* __restrict vector) {
    for (const Place* p = e.places; p < e.places + e.parameters; p++)
        for (int64_t row = 0; row < p->rows; row++)
            for (int64_t q = 0; q < p->width; q++)
                gradient[p->from + row * p->stride + q] = vector[p->to + row * p->width + q];
}

static void combine(R* __restrict mine, const R* __restrict theirs, const Move& move) {
    const int64_t count = move.stop - move.start;
    mine += move.at;
    theirs += move.start;
    if (move.add)
        for (int64_t q = 0; q < count; q++) mine[q] += theirs[q];
    else
        std::memcpy(mine, theirs, sizeof(R) * count);
}

// Makes the gradient of this worker the sum over all chunks of all; false where that is not possible, and `ended` says why.
static bool exchange(Exchange& e, R* gradient, Note& note) {
    const int64_t turn = e.number % 2;
    note.waited = 0;
    for (const Move* move = e.moves; move < e.moves + e.steps; move++) {
        if (move->to >= 0) {
            stream(e.vectors[turn] + move->first, e.own + move->first, move->last - move->first);
            offer(e.peers[move->to]);
        }
        if (move->from == NO_WORKER) continue;
        if (move->from != ITSELF && !await(e, move->from, note.waited)) return false;
        combine(e.own, move->from == ITSELF ? e.own : e.peers[move->from].vectors[turn], *move);
    }
    read_vector(e, gradient, e.own);
    note.mean = (double)e.own[e.tail + e.parameters] / (double)e.own[e.tail + e.parameters + 1];
    note.summed = now();
    e.number++;
    return true;
}

// Lets the neighbours take this worker's weights. Its gradient does not change them, so they are offered before it is
// computed: a worker that is a little slower in this update is not waited for.
static void offer_weights(Exchange& e, const R* weights) {
    write_vector(e, weights, e.own, 0, 1);
    stream(e.vectors[e.number % 2], e.own, e.tail + e.parameters + 2);
    for (const Move* move = e.moves; move < e.moves + e.steps; move++) offer(e.peers[move->to]);
}

// Mixes this worker's weights with those of its neighbours, with the same share of each; their gradients are not touched.
// As in Python a product and its sum are rounded once: a replay by Python has the same bits.
static bool mix(Exchange& e, R* weights, Note& note) {
    if (e.finite && !std::isfinite(note.loss)) return e.ended = NOT_FINITE, false;
    note.waited = 0;
    for (const Move* move = e.moves; move < e.moves + e.steps; move++)
        if (!await(e, move->from, note.waited)) return false;
    const R share = R(e.share);
    for (const Move* move = e.moves; move < e.moves + e.steps; move++) {
        const R* vector = e.peers[move->from].vectors[e.number % 2];
        const R own = move == e.moves ? share : R(1); // of what is mixed so far
        for (const Place* p = e.places; p < e.places + e.parameters; p++)
            for (int64_t row = 0; row < p->rows; row++) {
                const R* __restrict theirs = vector + p->to + row * p->width;
                R* __restrict mine = weights + p->from + row * p->stride;
                for (int64_t q = 0; q < p->width; q++) mine[q] = std::fma(theirs[q], share, mine[q] * own);
            }
    }
    note.mean = note.loss;
    note.summed = now();
    e.number++;
    return true;
}
