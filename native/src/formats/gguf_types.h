// The tensor types of GGUF files: their numbers, their blocks, and which dtype of ours they are.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace tv {

struct GgufTensorType {
  uint32_t number;
  const char* name;
  uint32_t block;   // elements per block; 0: retired from the format, size not kept
  uint32_t nbytes;  // bytes per block
  DType dtype;      // meaningful when supported
  bool supported;
};

// nullptr for a number that no version of the format gave a meaning.
const GgufTensorType* gguf_tensor_type(uint32_t number);

}  // namespace tv
