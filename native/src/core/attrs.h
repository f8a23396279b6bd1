// Attributes of one op call in a plan: a short list of typed key/value pairs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tv {

class Attrs {
 public:
  using Value = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

  void add(std::string key, Value value);
  bool has(std::string_view key) const;
  // The two-argument forms return `otherwise` when the key is absent; the others throw bad_plan.
  // A key of the wrong type always throws bad_plan. Integers and bools are int64.
  int64_t i64(std::string_view key) const;
  int64_t i64(std::string_view key, int64_t otherwise) const;
  double f64(std::string_view key) const;
  double f64(std::string_view key, double otherwise) const;
  std::string_view str(std::string_view key) const;
  std::string_view str(std::string_view key, std::string_view otherwise) const;
  const std::vector<int64_t>& ints(std::string_view key) const;

 private:
  std::vector<std::pair<std::string, Value>> items_;
};

}  // namespace tv
