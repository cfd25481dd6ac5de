#pragma once
/// \file
/// Which spans clients mark, and whether that is what a policy needs: known before a run.

#include "experiment.hpp"
#include "recording.hpp"

#include <array>
#include <string>

#include "sluice/policy.hpp"

namespace sluice::lab {

/// By span_kind: whether anybody marks such.
using marked_spans = std::array<bool, span_kinds>;

marked_spans marks_in(const scenario& what);
marked_spans marks_in(const recording& what);

/// Empty when `who` can work with these; else what it needs, to follow its name: "needs clients
/// that mark the span request or ttft".
std::string unmet_need(const policy& who, const marked_spans& marked);

}  // namespace sluice::lab
