// Boost.JSON, compiled once into the program: Debian's headers-only Boost package has no library of
// it.
#include <boost/json/src.hpp>
