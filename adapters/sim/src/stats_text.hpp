#pragma once
/// \file
/// JSON text, as stats.json needs it.

#include <string>
#include <type_traits>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::sim {

inline std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

/// `{"name":number,...}` without the braces' neighbours.
class json_object {
 public:
  json_object& add(const char* name, const std::string& raw) {
    text_ += text_.empty() ? "{\"" : ",\"";
    text_ += name;
    text_ += "\":";
    text_ += raw;
    return *this;
  }
  template <class Number>
  requires std::is_arithmetic_v<Number> json_object& add(const char* name, Number value) {
    return add(name, std::to_string(value));
  }
  json_object& add(const char* name, duration value) { return add(name, value.count()); }
  std::string text() const { return text_ + '}'; }

 private:
  std::string text_;
};

inline std::string json_array(const std::vector<std::string>& items) {
  std::string out = "[";
  for (const auto& item : items) {
    if (out.size() > 1) out += ',';
    out += item;
  }
  return out + ']';
}

}  // namespace sluice::sim
