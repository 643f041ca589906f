// --- a kernel for each layer, one sample after the other ---

FUNCTION void ready(const Call& c, Group& g, int64_t update) {
    prepare(c, g, update, 1, 0);
    g.gradient = c.gradients;
    g.lanes = nullptr;
    g.seed = 0;
}

KERNEL paceline_begin(const Call* c, int64_t update, int64_t) {
    Group g;
    ready(*c, g, TURN + update);
    take_inputs(g, INPUT(g));
    set_to_zero(g.arena + ZEROED, ZEROED_END - ZEROED);
    set_to_zero(g.gradient, NUMBERS);
    if (THREAD == 0) c->losses[0] = 0;
}

#define LAYER(number, layer)                                                \
    KERNEL paceline_layer_##number(const Call* c, int64_t update, int64_t) { \
        Group g;                                                            \
        ready(*c, g, TURN + update);                                        \
        layer(g);                                                           \
        if (THREAD == 0) c->losses[0] += g.loss[0];                         \
    }
