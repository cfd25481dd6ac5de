#pragma once
/// \file
/// What the demo shares with the laboratory (adapters/lab), which judges the same work in virtual
/// time: arrivals, offline kernels, how requests become kernels, percentiles.

#include "sluice/lab/arrivals.hpp"
#include "sluice/lab/checked.hpp"
#include "sluice/lab/offline_load.hpp"
#include "sluice/lab/percentiles.hpp"
#include "sluice/lab/serving.hpp"

namespace demo {

using namespace sluice::lab;
using sluice::duration;

}  // namespace demo
