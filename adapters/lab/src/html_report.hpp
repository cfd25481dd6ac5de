#pragma once
/// \file
/// A study as one HTML page: latencies, what each policy gives for them, and what happened when.

#include "study.hpp"
#include "sweep.hpp"

#include <string>
#include <string_view>
#include <vector>

#include "sluice/lab/page.hpp"

namespace sluice::lab {

/// \param command what was typed; as it stands.
/// \param grids of a sweep: then the page shows these. Else it needs study_spec::keep_requests and
/// keep_decisions.
page::document page_of(const study_spec& spec, const study& all, std::string_view command,
                       const std::vector<sweep_grid>& grids = {});

/// The page itself. The same study gives the same bytes on every machine.
std::string html_report(const study_spec& spec, const study& all, std::string_view command,
                        const std::vector<sweep_grid>& grids = {});

}  // namespace sluice::lab
