#include "core/rates.h"

#include "check.h"

int main() {
  tv::ThreadPool one(1), two(2);
  for (tv::ThreadPool* pool : {&one, &two}) {
    const tv::Rates rates = tv::measure_rates(*pool);
    for (const double rate : {rates.read_bytes, rates.f32, rates.bf16, rates.i8})
      CHECK(rate > 1e6 && rate < 1e16);
  }
  return check_result();
}
