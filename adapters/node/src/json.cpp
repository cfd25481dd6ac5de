// Boost.JSON, compiled once: Debian's headers-only Boost package has no library of it.
#include <boost/json/src.hpp>
