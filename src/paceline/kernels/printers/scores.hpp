// --- the scores of samples, a row each ---

extern "C" void paceline_scores(const Call* c, R* scores) {
    FlushDenormals flush;
    Group g;
    g.gradient = c->gradients;
    g.lanes = c->lane_gradients;
    begin_draws(*c, g, 0);
    const int64_t groups = groups_of(c->samples);
    for (int64_t k = 0; k < groups; k++) {
        prepare(*c, g, 0, c->samples, k, groups, c->arenas, 0);
        run_phase(0, g);
        const V* found = SCORES;
        for (int l = 0; l < LANES && k * LANES + l < c->samples; l++)
            for (int o = 0; o < SCORES_LENGTH; o++) scores[(k * LANES + l) * SCORES_LENGTH + o] = lane(found[o], l);
    }
}
