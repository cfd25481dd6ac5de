// Boost.JSON, compiled once into the demo: Debian's headers-only Boost package has no library of
// it.
#include <boost/json/src.hpp>
