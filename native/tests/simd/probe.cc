// Compiled once per instruction set, like a kernel.
#include "probe.h"

#include "simd/math.h"

namespace tv::TV_ISA {
namespace {

template <class F>
void over(const float* x, float* y, int n, F f) {
  for (int i = 0; i < n; i += kLanes) {
    const int count = n - i < kLanes ? n - i : kLanes;
    if (count == kLanes)
      store(y + i, f(load(x + i)));
    else
      store_partial(y + i, f(load_partial(x + i, count)), count);
  }
}

void from_i8(const int8_t* x, float* y, int n) {
  for (int i = 0; i + kLanes <= n; i += kLanes) store(y + i, load_i8(x + i));
}

#define TV_PROBE_WIDEN(name)                                              \
  void from_##name(const uint16_t* x, float* y, int n) {                  \
    for (int i = 0; i < n; i += kLanes)                                   \
      if (n - i >= kLanes)                                                \
        store(y + i, load_##name(x + i));                                 \
      else                                                                \
        store_partial(y + i, load_##name##_partial(x + i, n - i), n - i); \
  }                                                                       \
  void to_##name(const float* x, uint16_t* y, int n) {                    \
    for (int i = 0; i < n; i += kLanes)                                   \
      if (n - i >= kLanes)                                                \
        store_##name(y + i, load(x + i));                                 \
      else                                                                \
        store_##name##_partial(y + i, load_partial(x + i, n - i), n - i); \
  }
TV_PROBE_WIDEN(f16)
TV_PROBE_WIDEN(bf16)

F32 flag(Mask m) { return select(m, broadcast(1.0f), zero()); }

bool same(const char* a, const char* b) {
  for (; *a && *a == *b; ++a, ++b) {
  }
  return *a == *b;
}

bool apply(const char* name, const float* pa, const float* pb, const float* pc, float* out) {
  const F32 a = load(pa), b = load(pb), c = load(pc);
  F32 r = zero();
  if (same(name, "add"))
    r = a + b;
  else if (same(name, "sub"))
    r = a - b;
  else if (same(name, "mul"))
    r = a * b;
  else if (same(name, "div"))
    r = a / b;
  else if (same(name, "neg"))
    r = -a;
  else if (same(name, "fma"))
    r = fma(a, b, c);
  else if (same(name, "min"))
    r = min(a, b);
  else if (same(name, "max"))
    r = max(a, b);
  else if (same(name, "abs"))
    r = abs(a);
  else if (same(name, "sqrt"))
    r = sqrt(a);
  else if (same(name, "round"))
    r = round(a);
  else if (same(name, "floor"))
    r = floor(a);
  else if (same(name, "copysign"))
    r = copysign(a, b);
  else if (same(name, "lt"))
    r = flag(lt(a, b));
  else if (same(name, "le"))
    r = flag(le(a, b));
  else if (same(name, "gt"))
    r = flag(gt(a, b));
  else if (same(name, "ge"))
    r = flag(ge(a, b));
  else if (same(name, "eq"))
    r = flag(eq(a, b));
  else if (same(name, "ne"))
    r = flag(ne(a, b));
  else if (same(name, "and"))
    r = flag(lt(a, b) & lt(b, c));
  else if (same(name, "or"))
    r = flag(lt(a, b) | lt(b, c));
  else if (same(name, "not"))
    r = flag(!lt(a, b));
  else if (same(name, "any"))
    r = broadcast(any(lt(a, b)) ? 1.0f : 0.0f);
  else if (same(name, "select"))
    r = select(lt(a, b), b, c);
  else if (same(name, "integers"))
    r = to_f32(shift_right<1>(shift_left<3>(to_i32(a)) - broadcast_i32(5)) +
               (to_i32(b) & broadcast_i32(0xff)));
  else
    return false;
  store(out, r);
  return true;
}

float sum(const float* x) { return reduce_add(load(x)); }
float largest(const float* x) { return reduce_max(load(x)); }
float smallest(const float* x) { return reduce_min(load(x)); }
void narrow(const float* x, int16_t* y) { store_i16(y, to_i32(load(x))); }

#define TV_PROBE_MATH(name)                            \
  void probe_##name(const float* x, float* y, int n) { \
    over(x, y, n, [](F32 v) { return name(v); });      \
  }
TV_PROBE_MATH(exp)
TV_PROBE_MATH(log)
TV_PROBE_MATH(tanh)
TV_PROBE_MATH(erf)
TV_PROBE_MATH(sigmoid)

}  // namespace

SimdProbe simd_probe() {
  return {kLanes,    probe_exp, probe_log, probe_tanh, probe_erf, probe_sigmoid, from_i8,  from_f16,
          from_bf16, to_f16,    to_bf16,   apply,      sum,       largest,       smallest, narrow};
}

}  // namespace tv::TV_ISA
