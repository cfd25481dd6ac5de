#pragma once
/// \file
/// A study in its forms: a table for people, JSON and CSV for programs. The same study gives the
/// same bytes wherever the same libm is.

#include "study.hpp"
#include "sweep.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::lab {

/// A figure that reports show, in the order of the table.
struct metric {
  std::string_view key;    ///< In JSON.
  std::string_view title;  ///< Of the table's column; empty: in JSON only.
  std::string_view help;   ///< One line, with the unit.
  int decimals = 1;
  std::function<double(const figures&)> value;
  /// Whether the column says anything here.
  std::function<bool(const study_spec&, const cell&)> applies;
};
const std::vector<metric>& metrics();

/// \return one value per seed; those that are empty left out.
std::vector<double> values_of(const metric& which, const cell& from);

/// What a policy did that figures do not show: that it was removed, or declared what is ignored.
std::vector<std::string> remarks_on(const cell& from);

/// One setting's table: the columns that say something there.
struct report_table {
  struct field {
    std::string mean;        ///< "-" where there is nothing to say.
    std::string half_width;  ///< Of its interval; empty when there is one value.
  };
  std::vector<const metric*> columns;
  std::vector<std::vector<field>> rows;  ///< For each cell of the setting, one for each column.
};
report_table table_of(const study_spec& spec, const setting& where);

std::string text_report(const study_spec& spec, const study& all);
/// One object; `command` is what was typed, `grids` are of a sweep.
std::string json_report(const study_spec& spec, const study& all, std::string_view command,
                        const std::vector<sweep_grid>& grids = {});

/// A table for each grid, with the break-even line below it.
std::string text_sweep(const std::vector<sweep_grid>& grids);

/// For CSV: in quotes where it has to be.
std::string csv_field(std::string_view text);

/// Calls `write` for each piece; a row for each contender at each point of each grid.
void csv_sweep(const std::vector<sweep_grid>& grids,
               const std::function<void(std::string_view)>& write);
/// Likewise, a row for each request of each run (study_spec::keep_requests).
void csv_requests(const study_spec& spec, const study& all,
                  const std::function<void(std::string_view)>& write);
/// A row for each driver call of each run (study_spec::keep_decisions).
void csv_decisions(const study_spec& spec, const study& all,
                   const std::function<void(std::string_view)>& write);

}  // namespace sluice::lab
