// Errors inside the core are exceptions; the C ABI (src/abi) catches them and returns a tv_status.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace tv {

// Equal to tv_status in trivet.h. Numbers are never reused.
enum class Status : int32_t {
  ok = 0,
  invalid_argument = 1,
  shape = 2,
  dtype = 3,
  unsupported = 4,
  bad_gguf = 5,
  bad_plan = 6,
  tokenizer = 7,
  bad_model = 8,
  capacity = 9,
  non_finite = 10,
  io = 11,
  device_unavailable = 12,
  internal = 13,
  cancelled = 14,
  out_of_memory = 15,
  chat_template = 16,
};

class Error : public std::exception {
 public:
  Error(Status status, std::string message) : status_(status), message_(std::move(message)) {}
  Status status() const noexcept { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Status status_;
  std::string message_;
};

// Throws Error with a printf-style message. Never returns.
[[noreturn]] [[gnu::format(printf, 2, 3)]] void fail(Status status, const char* format, ...);

}  // namespace tv
