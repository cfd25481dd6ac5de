#pragma once
/// \file
/// A driver of no hardware, for tests of what chooses, shows and configures drivers.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sluice/driver.hpp"

namespace sluice::test {

class stub_driver : public driver {
 public:
  /// \param absent empty: it is present.
  explicit stub_driver(std::string name, std::string absent = {})
      : name_(std::move(name)), absent_(std::move(absent)) {}

  std::string_view name() const noexcept override { return name_; }
  std::string why_absent() const override { return absent_; }
  std::string device_key() const override { return key; }
  std::string set(std::string_view which, const setting& value) override {
    if (which == "careful") return take_setting(value, careful);
    if (which == "text") return take_setting(value, text);
    return driver::set(which, value);
  }
  std::unique_ptr<survey> make_survey(message_sink) const override { return nullptr; }
  result<node_view> look() const override { return view; }
  acting_choice acting() const override {
    return {.driver = name_, .settings = {{"careful", careful ? "true" : "false"}, {"text", text}}};
  }
  std::vector<check> examine(const machine&) const override { return checks; }

  std::string key;
  bool careful = false;
  std::string text = "x";
  node_view view;
  std::vector<check> checks;

 private:
  std::string name_;
  std::string absent_;
};

}  // namespace sluice::test
