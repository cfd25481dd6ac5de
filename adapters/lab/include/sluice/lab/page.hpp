#pragma once
/// \file
/// One HTML page that compares runs: what it shows, and the page itself. It knows nothing of who
/// ran what; the laboratory fills it from a study (html_report.hpp).

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::lab::page {

/// Who is compared. Others name one by its index in document::actors: the same colour, marker and
/// dashes everywhere.
struct actor {
  std::string name;
  /// Stands beside those that are judged: in grey.
  bool reference = false;
};

/// A mean, and half of its interval; 0: no interval is drawn.
struct estimate {
  double mean = 0;
  double half_width = 0;
};

struct table {
  struct column {
    std::string title;
    std::string help;  ///< One line.
  };
  struct cell {
    std::string text;
    std::string spread;  ///< Below it, smaller; may be empty.
  };
  struct row {
    std::size_t who = 0;
    std::string name;         ///< Empty: the actor's.
    std::vector<cell> cells;  ///< One for each column.
  };
  std::vector<column> columns;
  std::vector<row> rows;
};

/// Latencies at all percentiles.
struct distribution {
  struct line {
    std::size_t who = 0;
    std::size_t samples = 0;
    std::vector<duration> quantiles;  ///< By quantiles_of().
  };
  std::string title;
  std::vector<line> lines;
  std::optional<duration> target;  ///< Drawn as a line.
};

/// The smallest samples that at least a share 1 - 10^(-i / quantiles_per_decade) of all do not
/// exceed, for i = 0, 1, ... until that is the largest sample.
inline constexpr std::size_t quantiles_per_decade = 32;
std::vector<duration> quantiles_of(std::vector<duration> samples);

/// What one gives for the other: online latency to the right, offline throughput up.
struct frontier {
  struct point {
    std::size_t who = 0;
    std::string name;            ///< Empty: the actor's.
    estimate latency_ms;         ///< More than 0.
    estimate throughput;         ///< 1: as much as running alone.
    bool at_least = false;       ///< The latency would have been longer still.
    std::optional<double> most;  ///< Proven, at this latency.
  };
  std::string title, x_title, y_title;
  std::vector<point> points;
  std::vector<std::pair<double, double>> bound;  ///< Latency, ms, and throughput; rising.
  std::string bound_title;
  std::optional<double> alone_ms;  ///< Latency with nothing beside it.
};

/// What a queue, or a call to the driver, is doing.
enum class state : std::uint8_t { runs, waits, suspending, suspended, resuming };
inline constexpr std::size_t states = 5;

/// What happened when. All times from the same moment on.
struct timeline {
  struct interval {
    duration from{}, to{};
    state what = state::runs;
  };
  struct level {
    duration at{};
    std::uint32_t value = 0;  ///< From then on.
  };
  /// Has intervals or levels.
  struct lane {
    std::string name;
    std::vector<interval> intervals;  ///< One after the other.
    std::vector<level> levels;        ///< Ascending.
    std::vector<duration> instants;
  };
  struct track {
    std::size_t who = 0;
    std::string note;
    std::vector<lane> lanes;
  };
  std::string caption;
  duration begin{}, end{};  ///< What is outside is not drawn.
  std::vector<track> tracks;
};

/// The same grid for each of several: a field is the colder or warmer the further it is from what
/// matters.
struct heat_maps {
  struct field {
    /// -1 (good) to 1 (bad), 0 is in between; empty: nothing is known.
    std::optional<double> shade;
    std::string text;    ///< In the field: a few characters.
    std::string detail;  ///< When it is pointed at.
  };
  struct map {
    std::size_t who = 0;
    std::string name;           ///< Empty: the actor's.
    std::vector<field> fields;  ///< Row by row from the top; in it, column by column.
  };
  std::string title, help;
  std::string x_title, y_title;
  std::vector<std::string> columns, rows;
  std::string good, middle, bad;  ///< Of the legend; bad is empty where no shade is above 0.
  std::vector<map> maps;
  /// Drawn through all: for each row, the column's number where something turns; 0.5 is between the
  /// first two, infinite beyond the grid, NaN where nothing is known. Empty: no line.
  std::vector<double> line;
  std::string line_title;
};

/// All that was compared under the same conditions.
struct section {
  /// Such as {"load", "0.3"}: makes its title.
  std::vector<std::pair<std::string, std::string>> facets;
  std::string summary;
  std::vector<distribution> distributions;
  std::optional<frontier> trade;
  std::vector<heat_maps> grids;
  std::optional<timeline> events;
  std::optional<table> figures;
};

struct document {
  std::string title;
  std::string notice;                                      ///< Said first of all.
  std::string command;                                     ///< What makes this page again.
  std::vector<std::pair<std::string, std::string>> facts;  ///< Beside the command: what, value.
  std::vector<actor> actors;
  std::vector<section> sections;
  std::vector<std::string> notes;  ///< Paragraphs at the end.
};

/// The page: HTML5 with everything in it, to be read without network and without scripts; these
/// add zooming and exact values. The same document gives the same bytes. All texts may hold
/// anything; what is no UTF-8 is replaced.
std::string render(const document& what);

/// A command as a shell takes it, for document::command.
std::string shell_text(const std::vector<std::string>& words);

}  // namespace sluice::lab::page
