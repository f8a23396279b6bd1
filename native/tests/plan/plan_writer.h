// Writes plan bytes for tests, sound or not: nothing is checked here.
#pragma once

#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/crc32.h"
#include "plan/plan.h"

namespace tv {

struct PlanWriter {
  struct Attr {
    std::string key;
    Attrs::Value value;
  };
  struct OpBytes {
    std::string row;
    std::vector<uint32_t> in, out;
    std::vector<int32_t> alias;
    std::vector<Attr> attrs;
  };
  struct ValueBytes {
    uint8_t kind, dtype;
    std::string name;
    std::vector<Size> sizes;
    std::string data;
  };

  std::string name = "test";
  std::vector<Dim> dims;
  std::vector<ValueBytes> values;
  std::vector<OpBytes> ops;
  std::vector<std::pair<std::string, uint32_t>> outputs;
  std::vector<std::pair<uint32_t, uint32_t>> updates;

  static Size fixed(int64_t n) { return {0, n, -1}; }
  static Size of(uint32_t dim, int64_t scale = 1, int64_t offset = 0) { return {scale, offset, dim}; }

  uint32_t dim(std::string of, int64_t smallest, int64_t largest) {
    dims.push_back({std::move(of), smallest, largest});
    return static_cast<uint32_t>(dims.size() - 1);
  }
  uint32_t value(Kind kind, DType dtype, std::string of, std::vector<Size> sizes, std::string data = "") {
    values.push_back({static_cast<uint8_t>(kind), static_cast<uint8_t>(dtype), std::move(of),
                      std::move(sizes), std::move(data)});
    return static_cast<uint32_t>(values.size() - 1);
  }
  uint32_t temporary(DType dtype, std::vector<Size> sizes) {
    return value(Kind::temporary, dtype, "", sizes);
  }
  void op(std::string row, std::vector<uint32_t> in, std::vector<uint32_t> out, std::vector<Attr> attrs = {},
          std::vector<int32_t> alias = {}) {
    alias.resize(out.size(), -1);
    ops.push_back({std::move(row), std::move(in), std::move(out), std::move(alias), std::move(attrs)});
  }

  std::string bytes() const {
    std::string body;
    put_text(body, name);
    put<uint32_t>(body, dims.size());
    for (const Dim& d : dims) {
      put_text(body, d.name);
      put(body, d.smallest);
      put(body, d.largest);
    }
    put<uint32_t>(body, values.size());
    for (const ValueBytes& v : values) put_value(body, v);
    put<uint32_t>(body, ops.size());
    for (const OpBytes& op : ops) put_op(body, op);
    put<uint32_t>(body, outputs.size());
    for (const auto& [of, id] : outputs) {
      put_text(body, of);
      put(body, id);
    }
    put<uint32_t>(body, updates.size());
    for (const auto& [state, id] : updates) {
      put(body, state);
      put(body, id);
    }
    std::string all = "TVPLAN\r\n";
    put<uint32_t>(all, 1);
    put<uint64_t>(all, all.size() + 8 + body.size() + 4);
    return sealed(all + body);
  }

  // With a checksum that fits behind it.
  static std::string sealed(std::string all) {
    put(all, crc32(all.data(), all.size()));
    return all;
  }
  // The same length, but with `total` and checksum made to fit what is there.
  static std::string resealed(std::string all) {
    all.resize(all.size() - 4);
    const uint64_t total = all.size() + 4;
    std::memcpy(all.data() + 12, &total, 8);
    return sealed(all);
  }

  template <class T>
  static void put(std::string& out, T number) {
    out.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  static void put_text(std::string& out, const std::string& text) {
    put<uint32_t>(out, text.size());
    out += text;
  }

 private:
  static void put_value(std::string& out, const ValueBytes& v) {
    out += static_cast<char>(v.kind);
    out += static_cast<char>(v.dtype);
    out += static_cast<char>(v.sizes.size());
    out += '\0';
    put_text(out, v.name);
    for (const Size& size : v.sizes) {
      put(out, size.scale);
      put<uint32_t>(out, size.dim < 0 ? 0xffffffff : static_cast<uint32_t>(size.dim));
      put(out, size.offset);
    }
    if (v.kind != static_cast<uint8_t>(Kind::constant)) return;
    put<uint64_t>(out, v.data.size());
    out += v.data;
  }

  static void put_op(std::string& out, const OpBytes& op) {
    put_text(out, op.row);
    put<uint32_t>(out, op.attrs.size());
    put<uint32_t>(out, op.in.size());
    put<uint32_t>(out, op.out.size());
    for (const Attr& attr : op.attrs) {
      put_text(out, attr.key);
      out += static_cast<char>(attr.value.index());
      put_attr(out, attr.value);
    }
    for (uint32_t id : op.in) put(out, id);
    for (size_t i = 0; i < op.out.size(); ++i) {
      put(out, op.out[i]);
      put(out, op.alias[i]);
    }
  }

  static void put_attr(std::string& out, const Attrs::Value& value) {
    if (const auto* integer = std::get_if<int64_t>(&value)) return put(out, *integer);
    if (const auto* real = std::get_if<double>(&value)) return put(out, *real);
    if (const auto* text = std::get_if<std::string>(&value)) return put_text(out, *text);
    const auto list = [&](const auto& numbers) {
      put<uint32_t>(out, numbers.size());
      for (const auto number : numbers) put(out, number);
    };
    if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) return list(*integers);
    list(std::get<std::vector<double>>(value));
  }
};

}  // namespace tv
