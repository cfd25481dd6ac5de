#pragma once
/// \file
/// A value, or the one line that tells the user why there is none. The programs print that line and
/// end; library code uses sluice::result instead, whose errors programs can tell apart.

#include <string>
#include <utility>

#include <boost/system/result.hpp>

namespace sluice::lab {

/// Made by failure() only: were it constructible from a string, checked<std::string> would be
/// ambiguous.
struct trouble {
  trouble() {}
  std::string message;
};

inline trouble failure(std::string text) {
  trouble made;
  made.message = std::move(text);
  return made;
}

template <class T>
using checked = boost::system::result<T, trouble>;

}  // namespace sluice::lab
