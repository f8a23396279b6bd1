// The vector interface of one instruction set behind plain functions, so that a test can call them all.
#pragma once

#include <cstdint>

struct SimdProbe {
  int lanes;
  // Over n elements, n of any size: the last vector is partial.
  void (*exp)(const float* x, float* y, int n);
  void (*log)(const float* x, float* y, int n);
  void (*tanh)(const float* x, float* y, int n);
  void (*erf)(const float* x, float* y, int n);
  void (*sigmoid)(const float* x, float* y, int n);
  void (*from_i8)(const int8_t* x, float* y, int n);  // whole vectors
  void (*from_f16)(const uint16_t* x, float* y, int n);
  void (*from_bf16)(const uint16_t* x, float* y, int n);
  void (*to_f16)(const float* x, uint16_t* y, int n);
  void (*to_bf16)(const float* x, uint16_t* y, int n);
  // One vector of a, b, c through an operation of the interface, by name; false for an unknown name.
  bool (*apply)(const char* name, const float* a, const float* b, const float* c, float* out);
  float (*reduce_add)(const float* x);
  float (*reduce_max)(const float* x);
  float (*reduce_min)(const float* x);
  void (*to_i16)(const float* x, int16_t* y);
};
