/* The loss and the gradient of perceptrons: layers with ReLU between them and cross-entropy behind, for many clients.

A client's rows are taken in blocks. The inputs of a layer are needed in two orders: `by_input`, with the rows of a block
next to each other, for the sums over the inputs; and `by_row`, for the gradient of the weights. Each number is a sum in
one order, that of its client's rows, whatever is computed next to it. What is not finite goes through as in PyTorch. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#if VECTOR_REGISTERS == 32
#define SUMS 8   /* numbers of a layer that are summed at once, in two vectors each */
#define HEIGHT 4 /* outputs of which a weight's gradient is summed at once */
#define WIDTH 4  /* and vectors of each */
#else
#define SUMS 6
#define HEIGHT 6
#define WIDTH 2
#endif
#define ROWS 32 /* of a block: a gradient is summed block by block, so all processors have the same blocks */
#define VECTORS (ROWS / LANES)
#define MOST_LAYERS 16

typedef struct {
    int64_t inputs, outputs, wide; /* wide: inputs, filled up to whole vectors */
    int64_t weight, bias;          /* their places in w: [outputs, inputs] and [outputs] */
    float *by_input, *by_row;      /* the inputs: [inputs, ROWS] and [ROWS, wide] */
    float *out;                    /* the outputs, then the derivative of the loss by them: [outputs, ROWS] */
} Layer;

/* out [count, ROWS] = the sums over k of factors[j * by_j + k * by_k] in [k, ROWS], some j at once, of one or two vectors
   of rows. */
INLINE void multiply(const float *factors, int64_t by_j, int64_t by_k, const float *in, int64_t many, float *out,
                     int count, int vectors) {
    Vector sum[SUMS][2];
    UNROLL for (int j = 0; j < count; j++)
        UNROLL for (int v = 0; v < vectors; v++)
            sum[j][v] = (Vector){0};
    for (int64_t k = 0; k < many; k++, in += ROWS, factors += by_k)
        UNROLL for (int j = 0; j < count; j++) {
            Vector factor = fill(factors[j * by_j]);
            UNROLL for (int v = 0; v < vectors; v++)
                sum[j][v] += factor * load(in + v * LANES);
        }
    UNROLL for (int j = 0; j < count; j++)
        UNROLL for (int v = 0; v < vectors; v++)
            *(Vector *)(out + j * ROWS + v * LANES) = sum[j][v];
}

/* The same for all j; rows that one vector holds need no second one. */
static void multiply_all(const float *factors, int64_t by_j, int64_t by_k, const float *in, int64_t many, float *out,
                         int64_t count, int64_t rows) {
    for (int64_t at = 0; at < rows; at += 2 * LANES, in += 2 * LANES, out += 2 * LANES) {
        int64_t j = 0;
        for (; j + SUMS <= count; j += SUMS)
            if (rows - at > LANES)
                multiply(factors + j * by_j, by_j, by_k, in, many, out + j * ROWS, SUMS, 2);
            else
                multiply(factors + j * by_j, by_j, by_k, in, many, out + j * ROWS, SUMS, 1);
        for (; j + 2 <= count; j += 2)
            multiply(factors + j * by_j, by_j, by_k, in, many, out + j * ROWS, 2, 2);
        for (; j < count; j++)
            multiply(factors + j * by_j, by_j, by_k, in, many, out + j * ROWS, 1, 2);
    }
}

/* g [height, inputs] (+)= the sums over the rows of d [height, ROWS] times by_row [rows, wide], from number `at`
   on. */
INLINE void add_weight_gradient(const float *d, const Layer *of, int64_t at, int64_t rows, float *g, int first,
                                int height, int width) {
    Vector sum[HEIGHT][WIDTH];
    const float *inputs = of->by_row + at;
    UNROLL for (int o = 0; o < height; o++)
        UNROLL for (int v = 0; v < width; v++)
            sum[o][v] = (Vector){0};
    for (int64_t r = 0; r < rows; r++, inputs += of->wide)
        UNROLL for (int o = 0; o < height; o++) {
            Vector slope = fill(d[o * ROWS + r]);
            UNROLL for (int v = 0; v < width; v++)
                sum[o][v] += slope * load(inputs + v * LANES);
        }
    UNROLL for (int o = 0; o < height; o++)
        UNROLL for (int v = 0; v < width; v++) {
            float *to = g + o * of->inputs + at + v * LANES;
            int64_t left = of->inputs - at - v * LANES;
            if (left >= LANES && first)
                *(Vector *)to = sum[o][v];
            else if (left >= LANES)
                *(Vector *)to += sum[o][v];
            else
                for (int64_t i = 0; i < left; i++)
                    to[i] = first ? sum[o][v][i] : to[i] + sum[o][v][i];
        }
}

/* The gradient of a layer's weight and bias. */
static void find_layer_gradient(const Layer *of, int64_t rows, float *g, int first) {
    const float *d = of->out;
    float *weight = g + of->weight, *bias = g + of->bias;
    for (int64_t at = 0; at < of->wide;) {
        const int full = at + WIDTH * LANES <= of->wide;
        int64_t o = 0;
        for (; o + HEIGHT <= of->outputs; o += HEIGHT)
            if (full)
                add_weight_gradient(d + o * ROWS, of, at, rows, weight + o * of->inputs, first, HEIGHT, WIDTH);
            else
                add_weight_gradient(d + o * ROWS, of, at, rows, weight + o * of->inputs, first, HEIGHT, 1);
        for (; full && o + 2 <= of->outputs; o += 2)
            add_weight_gradient(d + o * ROWS, of, at, rows, weight + o * of->inputs, first, 2, WIDTH);
        for (; o < of->outputs; o++)
            if (full)
                add_weight_gradient(d + o * ROWS, of, at, rows, weight + o * of->inputs, first, 1, WIDTH);
            else
                add_weight_gradient(d + o * ROWS, of, at, rows, weight + o * of->inputs, first, 1, 1);
        at += full ? WIDTH * LANES : LANES;
    }
    for (int64_t o = 0; o < of->outputs; o++) {
        float sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += d[o * ROWS + r];
        bias[o] = first ? sum : bias[o] + sum;
    }
}

/* to [columns, by_to] of from [rows, by_from]: the same numbers, next to each other the other way round. */
static void transpose(const float *from, int64_t by_from, int64_t rows, int64_t columns, float *to, int64_t by_to) {
    const int64_t fours = rows - rows % 4;
    for (int64_t r = 0; r < fours; r += 4)
        for (int64_t c = 0; c < columns; c++)
            for (int64_t i = r; i < r + 4; i++)
                to[c * by_to + i] = from[i * by_from + c];
    for (int64_t c = 0; c < columns; c++)
        for (int64_t i = fours; i < rows; i++)
            to[c * by_to + i] = from[i * by_from + c];
}

static void load_rows(const float *x, float unit, int64_t rows, const Layer *first) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < first->inputs; i++)
            first->by_row[r * first->wide + i] = x[r * first->inputs + i] * unit;
    for (int64_t r = rows; r < ROWS; r++)
        memset(first->by_row + r * first->wide, 0, (size_t)first->wide * sizeof(float));
    transpose(first->by_row, first->wide, ROWS, first->inputs, first->by_input, ROWS);
}

/* out = the layer's scores, and with ReLU, what enters the next one. */
static void forward(const Layer *of, const float *w, int64_t rows, const Layer *next) {
    multiply_all(w + of->weight, of->inputs, 1, of->by_input, of->inputs, of->out, of->outputs, rows);
    for (int64_t o = 0; o < of->outputs; o++)
        for (int v = 0; v < VECTORS; v++) {
            Vector *out = (Vector *)(of->out + o * ROWS + v * LANES), z = *out + fill(w[of->bias + o]);
            *out = z;
            if (next) {
                Mask negative = z < fill(0); /* NaN is not: it stays */
                *(Vector *)(next->by_input + o * ROWS + v * LANES) = (Vector)((Mask)z & ~negative);
            }
        }
}

/* Adds a block's losses, each times its share; out becomes their derivative by the scores. 0 if a label is not one. */
static int find_loss(const Layer *last, const int64_t *y, const float *share, float mean, int64_t rows, double *loss) {
    float *out = last->out;
    for (int64_t r = 0; r < rows; r++, out++) {
        if (y[r] < 0 || y[r] >= last->outputs)
            return 0;
        float most = -INFINITY, sum = 0, weight = share ? share[r] : mean, mine = out[y[r] * ROWS];
        for (int64_t c = 0; c < last->outputs; c++)
            most = out[c * ROWS] > most ? out[c * ROWS] : most; /* not NaN, which the sum becomes */
        for (int64_t c = 0; c < last->outputs; c++)
            sum += out[c * ROWS] = expf(out[c * ROWS] - most);
        *loss += (double)weight * (most - mine + logf(sum));
        for (int64_t c = 0; c < last->outputs; c++)
            out[c * ROWS] *= weight / sum;
        out[y[r] * ROWS] -= weight;
    }
    return 1;
}

/* of.out = the derivative by what left the layer, from that by what left the next one. */
static void backward(const Layer *of, const Layer *next, const float *w, int64_t rows) {
    multiply_all(w + next->weight, 1, next->inputs, next->out, next->outputs, of->out, of->outputs, rows);
    for (int64_t o = 0; o < of->outputs; o++)
        for (int v = 0; v < VECTORS; v++) {
            Vector *out = (Vector *)(of->out + o * ROWS + v * LANES);
            Mask off = load(next->by_input + o * ROWS + v * LANES) <= fill(0);
            *out = (Vector)((Mask)*out & ~off);
        }
}

/* The layers of a net, and memory for a block, which the caller frees; NULL where there is none. */
static float *make_net(const int64_t *sizes, int64_t layers, Layer *net) {
    int64_t size = 0, room = 0;
    if (layers > MOST_LAYERS)
        return NULL;
    for (int64_t l = 0; l < layers; l++) {
        int64_t inputs = sizes[l], outputs = sizes[l + 1], wide = (inputs + LANES - 1) / LANES * LANES;
        net[l] = (Layer){.inputs = inputs, .outputs = outputs, .wide = wide, .weight = size};
        net[l].bias = size + inputs * outputs;
        size = net[l].bias + outputs;
        room += (inputs + wide + outputs) * ROWS;
    }
    float *memory = aligned_alloc(64, ((size_t)room * sizeof(float) + 63) / 64 * 64), *at = memory;
    if (!memory)
        return NULL;
    memset(memory, 0, (size_t)room * sizeof(float)); /* what lies behind the end of a row stays 0 */
    for (Layer *of = net; of < net + layers; of++) {
        of->by_row = at, at += of->wide * ROWS;
        of->by_input = at, at += of->inputs * ROWS;
        of->out = at, at += of->outputs * ROWS;
    }
    return memory;
}

static void forward_all(const Layer *net, int64_t layers, const float *x, float unit, const float *w, int64_t rows) {
    load_rows(x, unit, rows, net);
    for (int64_t l = 0; l < layers; l++)
        forward(net + l, w, rows, l + 1 < layers ? net + l + 1 : NULL);
}

/* loss [clients] (or NULL) and g [clients, P] at w, whose models are `stride` numbers apart, on x [clients, count,
   inputs] times unit, y [clients, count]: the mean over the rows, or their sum with the shares [clients, count]. sizes
   [layers + 1] are the numbers between the layers. 0, or -1 where a label is not one, or -2 where there is no memory. */
int find_gradients(const int64_t *sizes, int64_t layers, int64_t clients, int64_t count, const float *x, float unit,
                   const int64_t *y, const float *share, const float *w, int64_t stride, float *loss, float *g) {
    Layer net[MOST_LAYERS];
    float *memory = make_net(sizes, layers, net);
    if (!memory)
        return -2;
    const Layer *last = net + layers - 1;
    const int64_t size = last->bias + last->outputs;
    int known = 1;
    for (int64_t i = 0; known && i < clients; i++, w += stride, g += size) {
        double sum = 0;
        for (int64_t at = 0; known && at < count; at += ROWS) {
            const int64_t rows = count - at < ROWS ? count - at : ROWS, from = i * count + at;
            forward_all(net, layers, x + from * net->inputs, unit, w, rows);
            known = find_loss(last, y + from, share ? share + from : NULL, 1.0f / count, rows, &sum);
            for (int64_t l = layers - 1; known && l >= 0; l--) {
                if (net + l != last)
                    backward(net + l, net + l + 1, w, rows);
                if (l > 0)
                    transpose(net[l].by_input, ROWS, net[l].inputs, ROWS, net[l].by_row, net[l].wide);
                find_layer_gradient(net + l, rows, g, at == 0);
            }
        }
        if (loss)
            loss[i] = (float)sum;
    }
    free(memory);
    return known ? 0 : -1;
}
