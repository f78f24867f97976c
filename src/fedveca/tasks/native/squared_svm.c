/* The squared SVM on rows as they are stored, for many clients and models: see squared_svm.py.

   Rows are prepared a few at a time, in memory that stays in the nearest cache, and used there for their scores and for
   the gradient: no batch is formed. Each number is a sum in one order, that of its client's rows, whatever is computed
   next to it. What is not finite goes through as in PyTorch. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 16, GROUP = 4, BLOCK = 64, LINE = 64 };

typedef float Vector __attribute__((vector_size(64), may_alias));
typedef float Half __attribute__((vector_size(32)));
typedef float Quarter __attribute__((vector_size(16)));

struct rows {
    const char *x;              /* [count, size]: bytes, or floats where number_bytes is 4 */
    const float *s;             /* [count]: +1 or -1 */
    const float *shift, *scale; /* [count, 1] or [size]: what is taken from x, and what it is multiplied by; or NULL */
    int64_t count, size, number_bytes;
    int64_t per_row;            /* whether each row has a shift and a scale, else each column */
    float unit, ridge;          /* what a prepared number stands for; the factor of |w|^2 / 2 */
};

struct asked {                  /* clients, each with rows of its own, and as many models each */
    int64_t clients, models;
    const int64_t *index;       /* [clients, taken] row numbers, lines `stride` apart */
    int64_t stride, taken;
    const int64_t *counts;      /* [clients] how many of them count, the first ones; NULL where all do */
};

struct block {                  /* some rows of a client, one after another */
    int64_t client, count, all; /* all: the rows of the client */
    int is_first, is_last;
    int64_t rows[BLOCK];
};

/* 1 and the block that begins at row `*at` of client `*client`, which go on; 0 after the last one; -1 where a row number
   is not one. */
static int take_block(const struct rows *of, const struct asked *asked, int64_t *client, int64_t *at,
                      struct block *block)
{
    const int64_t i = *client;
    if (i == asked->clients)
        return 0;
    block->client = i;
    block->all = asked->counts ? asked->counts[i] : asked->taken;
    block->count = block->all - *at < BLOCK ? block->all - *at : BLOCK;
    block->is_first = *at == 0;
    for (int64_t r = 0; r < block->count; r++, ++*at) {
        int64_t row = asked->index[i * asked->stride + *at];
        if (row < 0 || row >= of->count)
            return -1;
        block->rows[r] = row;
    }
    block->is_last = *at == block->all;
    if (block->is_last)
        ++*client, *at = 0;
    return 1;
}

static void fetch(const struct rows *of, int64_t row)
{
    const int64_t bytes = of->size * of->number_bytes;
    for (int64_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch(of->x + row * bytes + at);
}

/* out [size]: a row as the model takes it, but for its unit. */
static void prepare(const struct rows *of, int64_t row, float *restrict out)
{
    const int64_t size = of->size;
    const char *from = of->x + row * size * of->number_bytes;
    if (of->number_bytes == 4)
        memcpy(out, from, size * sizeof(float));
    else
        for (int64_t p = 0; p < size; p++)
            out[p] = ((const uint8_t *)from)[p];
    if (of->shift && of->per_row)
        for (int64_t p = 0; p < size; p++)
            out[p] = (out[p] - of->shift[row]) * of->scale[row];
    else if (of->shift)
        for (int64_t p = 0; p < size; p++)
            out[p] = (out[p] - of->shift[p]) * of->scale[p];
}

static float add_up(Vector v)
{
    Half h[2];
    Quarter q[2];
    memcpy(h, &v, sizeof v);
    h[0] += h[1];
    memcpy(q, h, sizeof q);
    q[0] += q[1];
    return (q[0][0] + q[0][2]) + (q[0][1] + q[0][3]);
}

/* The products w.x of a group. */
static void find_scores(const Vector *x, const Vector *w, int64_t vectors, float *score)
{
    Vector even[GROUP] = {{0}}, odd[GROUP] = {{0}};
    int64_t v = 0;
    for (; v + 1 < vectors; v += 2)
        for (int r = 0; r < GROUP; r++) {
            even[r] += w[v] * x[r * vectors + v];
            odd[r] += w[v + 1] * x[r * vectors + v + 1];
        }
    for (int r = 0; r < GROUP; r++) {
        if (v < vectors)
            even[r] += w[v] * x[r * vectors + v];
        score[r] = add_up(even[r] + odd[r]);
    }
}

/* pull += c x of a group, one row after another. */
static void add_rows(const Vector *x, const float *c, int64_t vectors, Vector *pull)
{
    for (int64_t v = 0; v < vectors; v++) {
        Vector sum = pull[v];
        for (int r = 0; r < GROUP; r++)
            sum += c[r] * x[r * vectors + v];
        pull[v] = sum;
    }
}

/* loss [clients, models] and g [clients, models, size] at w, whose models are `stride` numbers apart; either may be
   NULL. 0, or -1 where a row number is not one, or -2 where there is no memory. */
int find_slopes(const struct rows *of, const struct asked *asked, const float *w, int64_t stride, float *loss, float *g)
{
    const int64_t size = of->size, vectors = (size + WIDTH - 1) / WIDTH, models = asked->models;
    const int64_t room = (GROUP + 2 * models) * vectors * sizeof(Vector);
    struct block pair[2];
    int64_t client = 0, at = 0;
    Vector *x = aligned_alloc(sizeof(Vector), room), *pulls = x + GROUP * vectors, *mine = pulls + models * vectors;
    double *sums = malloc(models * sizeof(double));
    int found = x && sums ? take_block(of, asked, &client, &at, pair) : -2;
    if (x)
        memset(x, 0, room); /* what lies behind the end of a row stays 0 */
    for (int64_t r = 0; found > 0 && r < pair[0].count; r++)
        fetch(of, pair[0].rows[r]);
    for (int turn = 0; found > 0; turn = !turn) {
        const struct block *now = pair + turn, *next = pair + !turn;
        int64_t fetched = 0;
        found = take_block(of, asked, &client, &at, pair + !turn);
        if (found < 0)
            break;
        if (now->is_first)
            for (int64_t m = 0; m < models; m++) {
                memcpy(mine + m * vectors, w + (now->client * models + m) * stride, size * sizeof(float));
                sums[m] = 0;
            }
        memset(pulls, 0, models * vectors * sizeof(Vector));
        for (int64_t first = 0; first < now->count; first += GROUP) {
            const int64_t count = now->count - first < GROUP ? now->count - first : GROUP;
            for (int64_t r = 0; r < count; r++) {
                prepare(of, now->rows[first + r], (float *)(x + r * vectors));
                for (; found && fetched * now->count < (first + r + 1) * next->count; fetched++)
                    fetch(of, next->rows[fetched]);
            }
            for (int64_t m = 0; m < models; m++) {
                float score[GROUP], c[GROUP] = {0};
                find_scores(x, mine + m * vectors, vectors, score);
                for (int64_t r = 0; r < count; r++) {
                    const float s = of->s[now->rows[first + r]], gap = 1 - of->unit * (score[r] * s);
                    const float slack = gap < 0 ? 0 : gap; /* NaN stays */
                    sums[m] += (double)slack * slack;
                    c[r] = slack * s;
                }
                if (g)
                    add_rows(x, c, vectors, pulls + m * vectors);
            }
        }
        for (int64_t m = 0; m < models; m++) {
            const int64_t which = now->client * models + m;
            const float *model = (const float *)(mine + m * vectors), *pull = (const float *)(pulls + m * vectors);
            if (g) {
                float *restrict slope = g + which * size;
                const float share = of->unit / now->all;
                if (now->is_first)
                    for (int64_t p = 0; p < size; p++)
                        slope[p] = of->ridge * model[p] - share * pull[p];
                else
                    for (int64_t p = 0; p < size; p++)
                        slope[p] -= share * pull[p];
            }
            if (loss && now->is_last) {
                double length = 0;
                for (int64_t p = 0; p < size; p++)
                    length += (double)model[p] * model[p];
                loss[which] = 0.5 * (of->ridge * length + sums[m] / now->all);
            }
        }
    }
    free(x);
    free(sums);
    return found;
}
