/* relu(max_pool2d(conv2d(x), 2) + bias) of a 5x5 kernel with padding 2 and 32 outputs, and its gradients.

The forward pass keeps the convolution's output in registers and remembers a byte for each pooled number: which of the
four was the largest, or that the ReLU is off. A gradient then touches at most one of the four, so the passes back walk
over lists of the gradients that are not zero, a quarter of the products of a dense convolution or fewer.

x is [images, H, W, C] with H and W even, a weight [OUTPUTS, 5, 5, C], and g and y [images, H/2, W/2, OUTPUTS], or where
they are not `last` [images, OUTPUTS, H/2, W/2]. A function takes a range of the images, so that threads can share the
work, and returns whether there was memory enough. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#if VECTOR_REGISTERS == 32
#define COLUMNS 6 /* of the output that are convolved at once, in two rows */
#define ROWS 5    /* of the kernel whose sums are in registers at once */
#else
#define COLUMNS 2
#define ROWS 2
#endif
#define OUTPUTS 32
#define OFF 4 /* in place of which of the four: the ReLU is off */

typedef uint8_t Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

typedef struct {
    int64_t channels, height, width;
} Shape;

typedef struct {
    int32_t at; /* where the numbers lie by which it is multiplied */
    float g;
} Item;

INLINE void add(float *to, Vector v) { *(Vector *)to += v; }
INLINE Vector choose(Mask where, Vector yes, Vector no) { return (Vector)(((Mask)yes & where) | ((Mask)no & ~where)); }

static float *reserve(int64_t numbers) {
    return aligned_alloc(64, ((size_t)numbers * sizeof(float) + 63) / 64 * 64);
}

/* An image with a border of two zeros on each side: [H + 4, W + 4, C]. */
static void pad(const float *x, float *padded, Shape s) {
    int64_t line = (s.width + 4) * s.channels;
    memset(padded, 0, (size_t)((s.height + 4) * line) * sizeof(float));
    for (int64_t h = 0; h < s.height; h++)
        memcpy(padded + (h + 2) * line + 2 * s.channels, x + h * s.width * s.channels,
               (size_t)(s.width * s.channels) * sizeof(float));
}

/* Forward */

/* Adds some rows of the kernel to the sums [2, W, OUTPUTS] of two rows of the output, for some columns. */
INLINE void convolve(const float *padded, const float *weight, float *sums, int64_t line, int64_t width,
                     int64_t channels, int64_t rows, int columns, int first) {
    for (int64_t o = 0; o < OUTPUTS; o += 2 * LANES) {
        Vector sum[2][COLUMNS][2];
        UNROLL for (int r = 0; r < 2; r++)
            UNROLL for (int c = 0; c < columns; c++)
                UNROLL for (int v = 0; v < 2; v++)
                    sum[r][c][v] = (Vector){0};
        for (int64_t dy = 0; dy < rows; dy++) {
            const float *x = padded + dy * line, *w = weight + dy * 5 * channels * OUTPUTS + o;
            for (int64_t k = 0; k < 5 * channels; k++, x++, w += OUTPUTS) {
                Vector w0 = load(w), w1 = load(w + LANES);
                UNROLL for (int r = 0; r < 2; r++)
                    UNROLL for (int c = 0; c < columns; c++) {
                        Vector pixel = fill(x[r * line + c * channels]);
                        sum[r][c][0] += pixel * w0;
                        sum[r][c][1] += pixel * w1;
                    }
            }
        }
        UNROLL for (int r = 0; r < 2; r++)
            UNROLL for (int c = 0; c < columns; c++)
                UNROLL for (int v = 0; v < 2; v++) {
                    float *to = sums + (r * width + c) * OUTPUTS + o + v * LANES;
                    if (!first)
                        sum[r][c][v] += load(to);
                    *(Vector *)to = sum[r][c][v];
                }
    }
}

static void convolve_line(const float *padded, const float *weight, float *sums, Shape s, int64_t rows, int first) {
    int64_t line = (s.width + 4) * s.channels;
    for (int64_t left = s.width, columns; left; left -= columns) {
        columns = left >= COLUMNS && left != COLUMNS + 2 ? COLUMNS : left >= 4 && COLUMNS > 4 ? 4 : 2;
        if (columns == COLUMNS)
            convolve(padded, weight, sums, line, s.width, s.channels, rows, COLUMNS, first);
        else if (columns == 4 && COLUMNS > 4)
            convolve(padded, weight, sums, line, s.width, s.channels, rows, 4, first);
        else
            convolve(padded, weight, sums, line, s.width, s.channels, rows, 2, first);
        padded += columns * s.channels;
        sums += columns * OUTPUTS;
    }
}

/* As PyTorch: the first of equal maxima, NaN is larger than any number, and relu(NaN) is NaN. */
static void pool(const float *sums, const float *bias, float *y, uint8_t *which, int64_t width) {
    for (int64_t w = 0; w < width; w += 2, y += OUTPUTS)
        for (int o = 0; o < OUTPUTS; o += LANES) {
            Vector most = load(sums + w * OUTPUTS + o);
            Mask at = {0};
            UNROLL for (int i = 1; i < 4; i++) {
                Vector v = load(sums + ((i / 2) * width + w + i % 2) * OUTPUTS + o);
                Mask larger = (v > most) | (v != v);
                most = choose(larger, v, most);
                at = (at & ~larger) | (i & larger);
            }
            most += load(bias + o);
            Mask off = most <= fill(0);
            *(Vector *)(y + o) = choose(off, fill(0), most);
            if (which)
                *(Bytes *)(which + w / 2 * OUTPUTS + o) = __builtin_convertvector((at & ~off) | (OFF & off), Bytes);
        }
}

/* y, and unless it is NULL of each of its numbers which of the four was the largest [images, H/2, W/2, OUTPUTS]. */
int run_forward(const float *x, const float *weight, const float *bias, float *y, uint8_t *which, int last,
                int64_t channels, int64_t height, int64_t width, int64_t from, int64_t to) {
    Shape s = {channels, height, width};
    int64_t line = (width + 4) * channels, pixels = height * width / 4;
    int64_t rows = channels < LANES ? 5 : 1; /* of the kernel whose weights stay in the nearest cache */
    float *padded = reserve((height + 4) * line), *sums = reserve(2 * width * OUTPUTS);
    float *pooled = reserve(pixels * OUTPUTS), *turned = reserve(25 * channels * OUTPUTS);
    int fits = padded && sums && pooled && turned;
    for (int64_t k = 0; fits && k < 25 * channels; k++)
        for (int64_t o = 0; o < OUTPUTS; o++)
            turned[k * OUTPUTS + o] = weight[o * 25 * channels + k];
    for (int64_t i = from; fits && i < to; i++) {
        pad(x + i * height * width * channels, padded, s);
        float *out = last ? y + i * pixels * OUTPUTS : pooled;
        for (int64_t h = 0; h < height; h += 2) {
            for (int64_t dy = 0; dy < 5; dy += rows) {
                const float *part = turned + dy * 5 * channels * OUTPUTS;
                convolve_line(padded + (h + dy) * line, part, sums, s, rows, dy == 0);
            }
            int64_t at = h * width / 4 * OUTPUTS;
            pool(sums, bias, out + at, which ? which + i * pixels * OUTPUTS + at : NULL, width);
        }
        for (int64_t p = 0; !last && p < pixels; p++)
            for (int o = 0; o < OUTPUTS; o++)
                y[(i * OUTPUTS + o) * pixels + p] = pooled[p * OUTPUTS + o];
    }
    free(padded), free(sums), free(pooled), free(turned);
    return fits;
}

/* Backward */

/* x [H, W, C] as planes [C / LANES, H + 4, W + 4, LANES] with a border of zeros. */
static void split(const float *x, float *planes, Shape s) {
    int64_t size = (s.height + 4) * (s.width + 4) * LANES;
    memset(planes, 0, (size_t)(s.channels / LANES * size) * sizeof(float));
    for (int64_t h = 0; h < s.height; h++)
        for (int64_t w = 0; w < s.width; w++)
            for (int64_t c = 0; c < s.channels; c += LANES, x += LANES)
                *(Vector *)(planes + c / LANES * size + ((h + 2) * (s.width + 4) + w + 2) * LANES) = load(x);
}

/* An image's gradients as [H/2 * W/2, OUTPUTS]: where they lie, or copied from [OUTPUTS, H/2 * W/2]. */
static const float *order(const float *g, int last, int64_t pixels, float *copy) {
    for (int64_t p = 0; !last && p < pixels; p++)
        for (int64_t o = 0; o < OUTPUTS; o++)
            copy[p * OUTPUTS + o] = g[o * pixels + p];
    return last ? g : copy;
}

/* Adds an image's gradients to db, and lists those of each output that are not zero in [OUTPUTS, H/2 * W/2]. */
static void list_places(const float *g, const uint8_t *which, Shape s, Item *lists, int64_t *counts, float *db) {
    int64_t line = (s.width + 4) * LANES, pixels = s.height * s.width / 4;
    float sum[OUTPUTS] = {0};
    memset(counts, 0, OUTPUTS * sizeof(int64_t));
    for (int64_t h = 0; h < s.height; h += 2)
        for (int64_t w = 0; w < s.width; w += 2, g += OUTPUTS, which += OUTPUTS)
            for (int64_t o = 0; o < OUTPUTS; o++) {
                int64_t k = which[o];
                float slope = k < OFF ? g[o] : 0;
                lists[o * pixels + counts[o]] = (Item){(int32_t)((h + k / 2) * line + (w + k % 2) * LANES), slope};
                counts[o] += slope != 0;
                sum[o] += slope;
            }
    for (int64_t o = 0; o < OUTPUTS; o++)
        db[o] += sum[o];
}

/* dw [5, 5, C] += g * patch, for some rows of the kernel and LANES channels, over a list of places in a plane. */
INLINE void add_patches(const float *plane, const Item *list, int64_t n, float *dw, int64_t line, int64_t channels,
                        int rows) {
    Vector sum[ROWS][5] = {0};
    for (int64_t i = 0; i < n; i++) {
        const float *x = plane + list[i].at;
        Vector g = fill(list[i].g);
        UNROLL for (int dy = 0; dy < rows; dy++, x += line)
            UNROLL for (int dx = 0; dx < 5; dx++)
                sum[dy][dx] += g * load(x + dx * LANES);
    }
    UNROLL for (int dy = 0; dy < rows; dy++)
        UNROLL for (int dx = 0; dx < 5; dx++)
            add(dw + (dy * 5 + dx) * channels, sum[dy][dx]);
}

/* dw [OUTPUTS, 5, 5, C] and db [OUTPUTS], zeros before, for C a multiple of LANES. */
int run_weight_gradient(const float *g, const uint8_t *which, const float *x, float *dw, float *db, int last,
                        int64_t channels, int64_t height, int64_t width, int64_t from, int64_t to) {
    Shape s = {channels, height, width};
    int64_t pixels = height * width / 4, line = (width + 4) * LANES, size = (height + 4) * line, counts[OUTPUTS];
    float *planes = reserve(channels / LANES * size), *copy = reserve(pixels * OUTPUTS);
    Item *lists = (Item *)reserve(2 * (OUTPUTS * pixels + 1));
    int fits = planes && copy && lists;
    for (int64_t i = from; fits && i < to; i++) {
        split(x + i * height * width * channels, planes, s);
        const float *slopes = order(g + i * pixels * OUTPUTS, last, pixels, copy);
        list_places(slopes, which + i * pixels * OUTPUTS, s, lists, counts, db);
        for (int64_t o = 0; o < OUTPUTS; o++)
            for (int64_t c = 0; c < channels; c += LANES) {
                const float *plane = planes + c / LANES * size;
                const Item *list = lists + o * pixels;
                float *sums = dw + o * 25 * channels + c;
                int dy = 0;
                for (; dy + ROWS <= 5; dy += ROWS)
                    add_patches(plane + dy * line, list, counts[o], sums + dy * 5 * channels, line, channels, ROWS);
                for (; dy < 5; dy++)
                    add_patches(plane + dy * line, list, counts[o], sums + dy * 5 * channels, line, channels, 1);
            }
    }
    free(planes), free(copy), free(lists);
    return fits;
}

/* Adds the products of one channel's pixels and LANES outputs' gradients to sums [5, 5, OUTPUTS], for some rows of the
   kernel. Zeros are multiplied as well: with few channels lists take longer. */
INLINE void add_pixels(const float *plane, const float *g, const uint8_t *which, float *sums, Shape s, int rows) {
    int64_t line = s.width + 4;
    Vector sum[ROWS][5] = {0};
    for (int64_t h = 0; h < s.height; h += 2)
        for (int64_t w = 0; w < s.width; w += 2, g += OUTPUTS, which += OUTPUTS) {
            Mask at = __builtin_convertvector(*(const Bytes *)which, Mask);
            Vector slope = load(g);
            for (int k = 0; k < 4; k++) {
                const float *x = plane + (h + k / 2) * line + w + k % 2;
                Vector here = choose(at == k, slope, fill(0));
                UNROLL for (int dy = 0; dy < rows; dy++, x += line)
                    UNROLL for (int dx = 0; dx < 5; dx++)
                        sum[dy][dx] += x[dx] * here;
            }
        }
    UNROLL for (int dy = 0; dy < rows; dy++)
        UNROLL for (int dx = 0; dx < 5; dx++)
            add(sums + (dy * 5 + dx) * OUTPUTS, sum[dy][dx]);
}

/* The same for few channels. */
int run_narrow_weight_gradient(const float *g, const uint8_t *which, const float *x, float *dw, float *db, int last,
                               int64_t channels, int64_t height, int64_t width, int64_t from, int64_t to) {
    Shape plane = {1, height, width};
    int64_t pixels = height * width / 4, line = width + 4, size = (height + 4) * line;
    float *padded = reserve(size), *values = reserve(height * width), *copy = reserve(pixels * OUTPUTS);
    float *sums = reserve(channels * 25 * OUTPUTS);
    int fits = padded && values && copy && sums;
    if (fits)
        memset(sums, 0, (size_t)(channels * 25 * OUTPUTS) * sizeof(float));
    for (int64_t i = from; fits && i < to; i++) {
        const uint8_t *at = which + i * pixels * OUTPUTS;
        const float *slopes = order(g + i * pixels * OUTPUTS, last, pixels, copy);
        float sum[OUTPUTS] = {0};
        for (int64_t p = 0; p < pixels; p++)
            for (int64_t o = 0; o < OUTPUTS; o++)
                sum[o] += at[p * OUTPUTS + o] < OFF ? slopes[p * OUTPUTS + o] : 0;
        for (int64_t o = 0; o < OUTPUTS; o++)
            db[o] += sum[o];
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t p = 0; p < height * width; p++)
                values[p] = x[(i * height * width + p) * channels + c];
            pad(values, padded, plane);
            for (int64_t o = 0; o < OUTPUTS; o += LANES) {
                float *part = sums + c * 25 * OUTPUTS + o;
                int dy = 0;
                for (; dy + ROWS <= 5; dy += ROWS)
                    add_pixels(padded + dy * line, slopes + o, at + o, part + dy * 5 * OUTPUTS, plane, ROWS);
                for (; dy < 5; dy++)
                    add_pixels(padded + dy * line, slopes + o, at + o, part + dy * 5 * OUTPUTS, plane, 1);
            }
        }
    }
    for (int64_t o = 0; fits && o < OUTPUTS; o++)
        for (int64_t k = 0; k < 25; k++)
            for (int64_t c = 0; c < channels; c++)
                dw[(o * 25 + k) * channels + c] = sums[(c * 25 + k) * OUTPUTS + o];
    free(padded), free(values), free(copy), free(sums);
    return fits;
}

/* Adds g * weight to the patches of one row of the convolution's numbers, but for the last two columns, which belong to
   the border; sums move with the patch. */
INLINE void spread_line(float *plane, const float *weight, const Item *lists, const uint8_t *counts, int64_t width,
                        int rows) {
    int64_t line = (width + 4) * LANES;
    Vector sum[ROWS][5] = {0};
    for (int64_t w = 0; w < width + 2; w++, plane += LANES) {
        if (w < width)
            for (const Item *item = lists + w * OUTPUTS, *end = item + counts[w]; item < end; item++) {
                const float *patch = weight + item->at;
                Vector g = fill(item->g);
                UNROLL for (int dy = 0; dy < rows; dy++)
                    UNROLL for (int dx = 0; dx < 5; dx++)
                        sum[dy][dx] += g * load(patch + (dy * 5 + dx) * LANES);
            }
        UNROLL for (int dy = 0; dy < rows; dy++) {
            add(plane + dy * line, sum[dy][0]);
            UNROLL for (int dx = 0; dx < 4; dx++)
                sum[dy][dx] = sum[dy][dx + 1];
            sum[dy][4] = fill(0);
        }
    }
}

/* dx, for C a multiple of LANES. */
int run_input_gradient(const float *g, const uint8_t *which, const float *weight, float *dx, int last,
                       int64_t channels, int64_t height, int64_t width, int64_t from, int64_t to) {
    int64_t pixels = height * width / 4, line = (width + 4) * LANES, size = (height + 4) * line;
    float *plane = reserve(size), *copy = reserve(pixels * OUTPUTS), *turned = reserve(25 * channels * OUTPUTS);
    Item *lists = (Item *)reserve(2 * height * width * OUTPUTS);
    uint8_t *counts = malloc((size_t)(height * width));
    int fits = plane && copy && turned && lists && counts;
    for (int64_t c = 0; fits && c < channels; c += LANES)
        for (int64_t k = 0; k < 25 * OUTPUTS; k++)
            *(Vector *)(turned + (c * 25 * OUTPUTS + k * LANES)) = load(weight + k * channels + c);
    for (int64_t i = from; fits && i < to; i++) {
        const float *slope = order(g + i * pixels * OUTPUTS, last, pixels, copy);
        const uint8_t *corner = which + i * pixels * OUTPUTS;
        memset(counts, 0, (size_t)(height * width));
        for (int64_t h = 0; h < height; h += 2)
            for (int64_t w = 0; w < width; w += 2, slope += OUTPUTS, corner += OUTPUTS)
                for (int o = 0; o < OUTPUTS; o++) {
                    int k = corner[o] & 3;
                    int64_t at = (h + k / 2) * width + w + k % 2;
                    lists[at * OUTPUTS + counts[at]] = (Item){o * 25 * LANES, slope[o]};
                    counts[at] += corner[o] != OFF && slope[o] != 0;
                }
        for (int64_t c = 0; c < channels; c += LANES) {
            const float *part = turned + c * OUTPUTS * 25;
            memset(plane, 0, (size_t)size * sizeof(float));
            for (int64_t h = 0; h < height; h++) {
                const Item *items = lists + h * width * OUTPUTS;
                const uint8_t *many = counts + h * width;
                int dy = 0;
                for (; dy + ROWS <= 5; dy += ROWS)
                    spread_line(plane + (h + dy) * line, part + dy * 5 * LANES, items, many, width, ROWS);
                for (; dy < 5; dy++)
                    spread_line(plane + (h + dy) * line, part + dy * 5 * LANES, items, many, width, 1);
            }
            for (int64_t h = 0; h < height; h++)
                for (int64_t w = 0; w < width; w++)
                    *(Vector *)(dx + ((i * height + h) * width + w) * channels + c) =
                        load(plane + (h + 2) * line + (w + 2) * LANES);
        }
    }
    free(plane), free(copy), free(turned), free(lists), free(counts);
    return fits;
}
