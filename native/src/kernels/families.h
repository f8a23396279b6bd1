// The kernel families, one line each: the stem of kernels/<family>.cc, whose TV_KERNELS table it names.
#pragma once

#define TV_FAMILIES(X) \
  X(attention)         \
  X(cross_entropy)     \
  X(dequantize)        \
  X(elementwise)       \
  X(embedding)         \
  X(experts)           \
  X(glu)               \
  X(linear)            \
  X(matmul)            \
  X(movement)          \
  X(norm)              \
  X(optimizer)         \
  X(paged)             \
  X(quantize)          \
  X(random)            \
  X(reduce)            \
  X(rope)              \
  X(softmax)
