/* Vectors of floats, as long as those of the processor for which a file is compiled. */

#ifndef VECTORS_H
#define VECTORS_H

#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define VECTOR_REGISTERS 32
#else
#define VECTOR_REGISTERS 16
#endif
#define UNROLL _Pragma("GCC unroll 32")
#define INLINE static inline __attribute__((always_inline))

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(4 * LANES)));

INLINE Vector load(const float *from) { return *(const Vector *)from; }
INLINE Vector fill(float number) { return number - (Vector){0}; }

#endif
