#include "core/attrs.h"

#include "core/error.h"
#include "core/quoted.h"

namespace tv {
namespace {

using Items = std::vector<std::pair<std::string, Attrs::Value>>;

const Attrs::Value* find(const Items& items, std::string_view key) {
  for (const auto& item : items)
    if (item.first == key) return &item.second;
  return nullptr;
}

[[noreturn]] void missing(std::string_view key) {
  fail(Status::bad_plan, "attribute %s is missing", quoted(key).c_str());
}

// The value as a T, or nullptr when the key is absent; throws when it has another type.
template <class T>
const T* get(const Items& items, std::string_view key) {
  static constexpr const char* kNames[] = {"an integer", "a real", "a string", "integers", "reals"};
  const Attrs::Value* value = find(items, key);
  if (value == nullptr) return nullptr;
  const T* typed = std::get_if<T>(value);
  if (typed == nullptr)
    fail(Status::bad_plan, "attribute %s is %s; wanted: %s", quoted(key).c_str(), kNames[value->index()],
         kNames[Attrs::Value(T{}).index()]);
  return typed;
}

template <class T>
const T& require(const Items& items, std::string_view key) {
  const T* value = get<T>(items, key);
  if (value == nullptr) missing(key);
  return *value;
}

}  // namespace

void Attrs::add(std::string key, Value value) { items_.emplace_back(std::move(key), std::move(value)); }

bool Attrs::has(std::string_view key) const { return find(items_, key) != nullptr; }

int64_t Attrs::i64(std::string_view key) const { return require<int64_t>(items_, key); }
int64_t Attrs::i64(std::string_view key, int64_t otherwise) const {
  const int64_t* value = get<int64_t>(items_, key);
  return value == nullptr ? otherwise : *value;
}

double Attrs::f64(std::string_view key) const { return require<double>(items_, key); }
double Attrs::f64(std::string_view key, double otherwise) const {
  const double* value = get<double>(items_, key);
  return value == nullptr ? otherwise : *value;
}

std::string_view Attrs::str(std::string_view key) const { return require<std::string>(items_, key); }
std::string_view Attrs::str(std::string_view key, std::string_view otherwise) const {
  const std::string* value = get<std::string>(items_, key);
  return value == nullptr ? otherwise : std::string_view(*value);
}

const std::vector<int64_t>& Attrs::ints(std::string_view key) const {
  return require<std::vector<int64_t>>(items_, key);
}

}  // namespace tv
