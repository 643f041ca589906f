// x[n, c, h, w] * filters[k, c, r, s] -> y[n, k, p, q]; every number counts samples, channels, rows, columns.

struct Shape {
    long n, c, h, w, k, r, s, stride, pad, p, q;
};

static inline float at(const Shape& S, const float* image, long y, long x) {
    return y < 0 || x < 0 || y >= S.h || x >= S.w ? 0.f : image[y * S.w + x];
}

extern "C" long lanes() { return LANES; }

// ---- direct: four output channels and up to three vectors of a row in registers -------------------------------------

// Padded, and each row split by column modulo stride, so that neighbours in y are neighbours here.
static long split_width(const Shape& S) { return (S.q + (S.s - 1) / S.stride + 3 * LANES + LANES); }

extern "C" long direct_workspace(const Shape* S) {
    long height = (S->p - 1) * S->stride + S->r;
    return S->n * S->c * height * S->stride * split_width(*S) + rounded(S->k, 4) * S->c * S->r * S->s;
}

template <int WIDE>
static inline void direct_block(const Shape& S, const float* image, const float* filters, float* y, long row, long col,
                                long left, long channels) {
    long width = split_width(S), height = (S.p - 1) * S.stride + S.r;
    V sum[4][WIDE];
    for (int k = 0; k < 4; k++)
        for (int v = 0; v < WIDE; v++) sum[k][v] = V{};
    for (long c = 0; c < S.c; c++)
        for (long r = 0; r < S.r; r++) {
            const float* line = image + ((c * height + row * S.stride + r) * S.stride) * width + col;
            const float* f = filters + (c * S.r + r) * S.s * 4;
            for (long s = 0; s < S.s; s++, f += 4) {
                const float* from = line + (s % S.stride) * width + s / S.stride;
                for (int v = 0; v < WIDE; v++) {
                    V pixel = load(from + v * LANES);
                    for (int k = 0; k < 4; k++) sum[k][v] += f[k] * pixel;
                }
            }
        }
    for (long k = 0; k < channels; k++) {
        float* to = y + k * S.p * S.q + row * S.q + col;
        for (int v = 0; v < WIDE; v++) {
            long some = left - v * LANES;
            if (some >= LANES)
                store(to + v * LANES, sum[k][v]);
            else
                for (long l = 0; l < some; l++) to[v * LANES + l] = sum[k][v][l];
        }
    }
}

extern "C" void direct(const Shape* shape, const float* x, const float* filters, float* y, float* space, long threads) {
    const Shape S = *shape;
    long width = split_width(S), height = (S.p - 1) * S.stride + S.r, taps = S.c * S.r * S.s;
    float* images = space + rounded(S.k, 4) * taps;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for
        for (long k = 0; k < rounded(S.k, 4); k++)
            for (long t = 0; t < taps; t++)
                space[(k / 4 * taps + t) * 4 + k % 4] = k < S.k ? filters[k * taps + t] : 0.f;
#pragma omp for
        for (long nc = 0; nc < S.n * S.c; nc++)
            for (long row = 0; row < height; row++)
                for (long phase = 0; phase < S.stride; phase++) {
                    float* to = images + ((nc * height + row) * S.stride + phase) * width;
                    for (long col = 0; col < width; col++)
                        to[col] = at(S, x + nc * S.h * S.w, row - S.pad, col * S.stride + phase - S.pad);
                }
#pragma omp for collapse(2) schedule(static)
        for (long n = 0; n < S.n; n++)
            for (long k = 0; k < S.k; k += 4) {
                const float* image = images + n * S.c * height * S.stride * width;
                const float* f = space + k * taps;
                float* to = y + (n * S.k + k) * S.p * S.q;
                long channels = S.k - k < 4 ? S.k - k : 4;
                for (long row = 0; row < S.p; row++)
                    for (long col = 0; col < S.q;) {
                        long left = S.q - col;
                        if (left > 2 * LANES)
                            direct_block<3>(S, image, f, to, row, col, left, channels), col += 3 * LANES;
                        else if (left > LANES)
                            direct_block<2>(S, image, f, to, row, col, left, channels), col += 2 * LANES;
                        else
                            direct_block<1>(S, image, f, to, row, col, left, channels), col += LANES;
                    }
            }
    }
}

// ---- unrolled: what a filter sees at each pixel becomes a column, and the convolution a matrix product ---------------

static const long BESIDE = 8;  // panels of pixels at once

extern "C" long unrolled_workspace(const Shape* S, long threads) {
    return threads * (S->c * S->r * S->s + 1) * BESIDE * PANEL;
}

extern "C" void unrolled(const Shape* shape, const float* x, const float* filters, float* y, float* space,
                         long threads) {
    const Shape S = *shape;
    long depth = S.c * S.r * S.s, pixels = S.p * S.q, wide = BESIDE * PANEL, blocks = (pixels + wide - 1) / wide;
#pragma omp parallel for num_threads(threads) collapse(2) schedule(static)
    for (long n = 0; n < S.n; n++)
        for (long b = 0; b < blocks; b++) {
            float* panels = space + omp_get_thread_num() * (depth + 1) * wide;
            long first = b * wide, some = pixels - first < wide ? pixels - first : wide;
            long k = 0;
            for (long c = 0; c < S.c; c++)
                for (long r = 0; r < S.r; r++)
                    for (long s = 0; s < S.s; s++, k++) {
                        const float* image = x + (n * S.c + c) * S.h * S.w;
                        long row = first / S.q, col = first % S.q;
                        for (long done = 0; done < rounded(some, PANEL);) {
                            // as far as this row of y, and this panel, go
                            long run = PANEL - done % PANEL;
                            if (S.q - col < run) run = S.q - col;
                            float* to = panels + done / PANEL * PANEL * depth + k * PANEL + done % PANEL;
                            long yy = row * S.stride + r - S.pad, xx = col * S.stride + s - S.pad;
                            if (row >= S.p || yy < 0 || yy >= S.h)
                                for (long l = 0; l < run; l++) to[l] = 0.f;
                            else if (S.stride == 1 && xx >= 0 && xx + run <= S.w)
                                memcpy(to, image + yy * S.w + xx, run * 4);
                            else
                                for (long l = 0; l < run; l++) to[l] = at(S, image, yy, xx + l * S.stride);
                            done += run;
                            col += run;
                            if (col == S.q) col = 0, row++;
                        }
                    }
            product(S.k, some, depth, filters, depth, 1, panels, y + n * S.k * pixels + first, pixels, false);
        }
}

// ---- Winograd's: a tile of outputs by fewer products, for filters of three by three and stride one -------------------

template <int M>
struct Tiles;

template <>
struct Tiles<2> {  // F(2 x 2, 3 x 3)
    static constexpr float B[4][4] = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}};
    static constexpr float G[4][3] = {{1, 0, 0}, {.5, .5, .5}, {.5, -.5, .5}, {0, 0, 1}};
    static constexpr float A[2][4] = {{1, 1, 1, 0}, {0, 1, -1, -1}};
};

template <>
struct Tiles<4> {  // F(4 x 4, 3 x 3)
    static constexpr float B[6][6] = {{4, 0, -5, 0, 1, 0},  {0, -4, -4, 1, 1, 0}, {0, 4, -4, -1, 1, 0},
                                      {0, -2, -1, 2, 1, 0}, {0, 2, -1, -2, 1, 0}, {0, 4, 0, -5, 0, 1}};
    static constexpr float G[6][3] = {{1.f / 4, 0, 0},
                                      {-1.f / 6, -1.f / 6, -1.f / 6},
                                      {-1.f / 6, 1.f / 6, -1.f / 6},
                                      {1.f / 24, 1.f / 12, 1.f / 6},
                                      {1.f / 24, -1.f / 12, 1.f / 6},
                                      {0, 0, 1}};
    static constexpr float A[4][6] = {{1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 0}, {0, 1, 1, 4, 4, 0}, {0, 1, -1, 8, -8, 1}};
};

static const long TOGETHER = 4;  // panels of tiles at once: they share each block of transformed filters

template <int M>
static long winograd_space(const Shape& S, long threads) {
    const long E = M + 2;
    return E * E * (S.k * S.c + threads * (S.c + S.k) * TOGETHER * PANEL);
}

template <int M>
static void winograd(const Shape& S, const float* x, const float* filters, float* y, float* space, long threads) {
    constexpr int E = M + 2;
    using T = Tiles<M>;
    long down = (S.p + M - 1) / M, across = (S.q + M - 1) / M, tiles = S.n * down * across, wide = TOGETHER * PANEL;
    float* U = space;  // [E][E][k][c]
    float* rest = space + E * E * S.k * S.c;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for
        for (long kc = 0; kc < S.k * S.c; kc++) {
            const float* g = filters + kc * 9;
            float half[E][3];
            for (int i = 0; i < E; i++)
                for (int j = 0; j < 3; j++) half[i][j] = T::G[i][0] * g[j] + T::G[i][1] * g[3 + j] + T::G[i][2] * g[6 + j];
            for (int i = 0; i < E; i++)
                for (int j = 0; j < E; j++)
                    U[(i * E + j) * S.k * S.c + kc] =
                        half[i][0] * T::G[j][0] + half[i][1] * T::G[j][1] + half[i][2] * T::G[j][2];
        }
        float* in = rest + omp_get_thread_num() * E * E * (S.c + S.k) * wide;  // [E][E][panel][c][PANEL]
        float* out = in + E * E * S.c * wide;                                  // [E][E][k][wide]
#pragma omp for schedule(static)
        for (long first = 0; first < tiles; first += wide) {
            long some = tiles - first < wide ? tiles - first : wide;
            for (long c = 0; c < S.c; c++)
                for (long from = 0; from < some; from += PANEL) {
                    alignas(64) float d[E][E][PANEL], half[E][E][PANEL];
                    for (long l = 0; l < PANEL; l++) {
                        long tile = first + from + l, n = tile / (down * across), place = tile % (down * across);
                        long top = place / across * M - S.pad, left = place % across * M - S.pad;
                        const float* image = x + (n * S.c + c) * S.h * S.w;
                        bool there = tile < tiles;
                        if (there && top >= 0 && left >= 0 && top + E <= S.h && left + E <= S.w)
                            for (int i = 0; i < E; i++)
                                for (int j = 0; j < E; j++) d[i][j][l] = image[(top + i) * S.w + left + j];
                        else
                            for (int i = 0; i < E; i++)
                                for (int j = 0; j < E; j++) d[i][j][l] = there ? at(S, image, top + i, left + j) : 0.f;
                    }
                    for (int i = 0; i < E; i++)
                        for (int j = 0; j < E; j++)
                            for (int v = 0; v < PANEL; v += LANES) {
                                V sum = V{};
                                for (int m = 0; m < E; m++)
                                    if (T::B[i][m] != 0) sum += T::B[i][m] * load(&d[m][j][v]);
                                store(&half[i][j][v], sum);
                            }
                    for (int i = 0; i < E; i++)
                        for (int j = 0; j < E; j++)
                            for (int v = 0; v < PANEL; v += LANES) {
                                V sum = V{};
                                for (int m = 0; m < E; m++)
                                    if (T::B[j][m] != 0) sum += T::B[j][m] * load(&half[i][m][v]);
                                store(in + (i * E + j) * S.c * wide + from * S.c + c * PANEL + v, sum);
                            }
                }
            for (int e = 0; e < E * E; e++)
                product(S.k, rounded(some, PANEL), S.c, U + e * S.k * S.c, S.c, 1, in + e * S.c * wide,
                        out + e * S.k * wide, wide, false);
            for (long k = 0; k < S.k; k++)
                for (long from = 0; from < some; from += PANEL) {
                    alignas(64) float half[M][E][PANEL], done[M][M][PANEL];
                    for (int i = 0; i < M; i++)
                        for (int j = 0; j < E; j++)
                            for (int v = 0; v < PANEL; v += LANES) {
                                V sum = V{};
                                for (int m = 0; m < E; m++)
                                    if (T::A[i][m] != 0)
                                        sum += T::A[i][m] * load(out + ((m * E + j) * S.k + k) * wide + from + v);
                                store(&half[i][j][v], sum);
                            }
                    for (int i = 0; i < M; i++)
                        for (int j = 0; j < M; j++)
                            for (int v = 0; v < PANEL; v += LANES) {
                                V sum = V{};
                                for (int m = 0; m < E; m++)
                                    if (T::A[j][m] != 0) sum += T::A[j][m] * load(&half[i][m][v]);
                                store(&done[i][j][v], sum);
                            }
                    long here = some - from < PANEL ? some - from : PANEL;
                    for (long l = 0; l < here; l++) {
                        long tile = first + from + l, n = tile / (down * across), place = tile % (down * across);
                        long top = place / across * M, left = place % across * M;
                        float* to = y + (n * S.k + k) * S.p * S.q;
                        for (int i = 0; i < M && top + i < S.p; i++)
                            for (int j = 0; j < M && left + j < S.q; j++)
                                to[(top + i) * S.q + left + j] = done[i][j][l];
                    }
                }
        }
    }
}

extern "C" long winograd2_workspace(const Shape* S, long threads) { return winograd_space<2>(*S, threads); }
extern "C" long winograd4_workspace(const Shape* S, long threads) { return winograd_space<4>(*S, threads); }
extern "C" void winograd2(const Shape* S, const float* x, const float* f, float* y, float* space, long threads) {
    winograd<2>(*S, x, f, y, space, threads);
}
extern "C" void winograd4(const Shape* S, const float* x, const float* f, float* y, float* space, long threads) {
    winograd<4>(*S, x, f, y, space, threads);
}
