// What every function of the C ABI does around its work: catch, keep the text, return the status; and how
// structs that begin with their own size are read and filled.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>

#include "core/error.h"
#include "trivet.h"

namespace tv::abi {

// Keeps a copy for tv_last_error() on this thread; long texts are cut.
void set_last_error(const char* text) noexcept;

// Runs f; every exception becomes a status and a text.
template <class F>
tv_status guard(F&& f) noexcept {
  try {
    f();
    return TV_OK;
  } catch (const Error& error) {
    set_last_error(error.what());
    return static_cast<tv_status>(error.status());
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return TV_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return TV_INTERNAL;
  } catch (...) {
    set_last_error("an unknown exception");
    return TV_INTERNAL;
  }
}

// Throws unless the pointer argument `name` of `call` is there.
inline void require(const void* pointer, const char* call, const char* name) {
  if (pointer == nullptr) fail(Status::invalid_argument, "[%s] %s is NULL", call, name);
}

// The fields of *info that the caller's version of the struct has. info->struct_size stays.
template <class Info>
void fill(Info* info, Info values, const char* call) {
  require(info, call, "out");
  const size_t size = info->struct_size;
  if (size < sizeof(size_t))
    fail(Status::invalid_argument, "[%s] struct_size is %zu; wanted: sizeof the struct, %zu", call, size,
         sizeof(Info));
  values.struct_size = size;
  std::memcpy(static_cast<void*>(info), &values, std::min(size, sizeof(Info)));
}

// Options as this version knows them: what a smaller struct lacks comes from `defaults`. A larger one is
// from a newer header: fields that this version does not know must be zero, for it would not obey them.
template <class Options>
Options read_options(const Options* options, const Options& defaults, const char* call) {
  Options known = defaults;
  if (options == nullptr) return known;
  const size_t size = options->struct_size;
  if (size < sizeof(size_t) || size > 4096)
    fail(Status::invalid_argument, "[%s] struct_size is %zu; wanted: sizeof the struct, %zu", call, size,
         sizeof(Options));
  const auto* bytes = reinterpret_cast<const unsigned char*>(options);
  for (size_t i = sizeof(Options); i < size; ++i)
    if (bytes[i] != 0)
      fail(Status::unsupported, "[%s] an option at byte %zu is newer than this library (%s)", call, i,
           tv_version());
  std::memcpy(static_cast<void*>(&known), options, std::min(size, sizeof(Options)));
  return known;
}

// Gives text of a size that the caller could not know: see "Lists" in trivet.h.
template <class T>
void give(const T* items, size_t n, T* out, size_t capacity, size_t* needed, const char* call) {
  require(needed, call, "needed");
  *needed = n;
  if (out == nullptr && capacity == 0) return;
  require(out, call, "out");
  if (n > capacity) fail(Status::capacity, "[%s] capacity is %zu; needed: %zu", call, capacity, n);
  if (n != 0) std::memcpy(out, items, n * sizeof(T));
}

}  // namespace tv::abi
