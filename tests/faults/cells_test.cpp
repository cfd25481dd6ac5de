// The table of cells is whole, its pairwise subset covers what it should, and README.md shows it.

#include "cells.hpp"

#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

namespace sluice::test::cells_test {
namespace {

TEST(FaultCells, HaveOneForEachPartyAndFault) {
  for (const party who : parties) {
    for (const fault what : faults) {
      const auto count = std::count_if(cells.begin(), cells.end(), [&](const cell& each) {
        return each.who == who && each.what == what;
      });
      EXPECT_EQ(count, 1) << word(who) << ' ' << word(what);
    }
  }
}

TEST(FaultCells, NameAnotherThatIsRunWhereTheyCannotBeToldFromIt) {
  for (const cell& each : cells) {
    if (each.then != effect::same) continue;
    EXPECT_NE(find_cell(each.who, each.like)->then, effect::same)
        << word(each.who) << ' ' << word(each.what);
  }
}

TEST(FaultCells, AreToldByTheLogWhereSomethingElseThanBeforeGoesOn) {
  for (const cell& each : cells) {
    if (each.then == effect::goes_on || each.then == effect::same) continue;
    EXPECT_FALSE(each.log.empty()) << word(each.who) << ' ' << word(each.what);
  }
}

TEST(FaultCells, OccurInPairsInTheSubsetAsInAll) {
  std::set<pair_of> wanted;
  std::set<pair_of> found;
  const auto all = all_combinations();
  const auto some = pairwise_combinations();
  for (const auto& [from, to] : {std::pair{&all, &wanted}, std::pair{&some, &found}}) {
    for (const combination& each : *from) {
      for (const pair_of& pair : pairs_of(each)) to->insert(pair);
    }
  }
  EXPECT_EQ(found, wanted);
  EXPECT_LT(some.size(), all.size() / 2);
  EXPECT_EQ(std::set(some.begin(), some.end()).size(), some.size());
  std::printf("%zu of %zu\n", some.size(), all.size());
}

/// Rows "| party | cell | ...", of which each begins with the effect's word.
TEST(FaultCells, AreWhatTheReadmeShows) {
  std::map<std::string, std::vector<std::string>> rows;
  std::ifstream file{SLUICE_FAULTS_README};
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| ")) continue;
    std::istringstream in{line.substr(2)};
    std::vector<std::string> words;
    for (std::string part; std::getline(in, part, '|');) {
      const auto from = part.find_first_not_of(" *`");
      words.push_back(from == part.npos ? "" : part.substr(from));
    }
    if (words.size() < 2) continue;
    const std::string name = words.front().substr(0, words.front().find_last_not_of(" *`") + 1);
    rows.try_emplace(name, words.begin() + 1, words.end());
  }
  std::vector<cell> all{cells.begin(), cells.end()};
  all.insert(all.end(), guarded_cells.begin(), guarded_cells.end());
  for (const cell& each : all) {
    const auto row = rows.find(std::string{word(each.who)});
    ASSERT_NE(row, rows.end()) << word(each.who);
    const auto column = static_cast<std::size_t>(each.what);
    ASSERT_LT(column, row->second.size());
    const std::string_view wanted = each.then == effect::same ? word(each.like) : word(each.then);
    const std::string start = each.then == effect::same ? "as " : "";
    EXPECT_TRUE(row->second[column].starts_with(start + std::string{wanted}))
        << word(each.who) << ' ' << word(each.what) << ": '" << row->second[column] << "', not '"
        << start << wanted << "'";
  }
}

}  // namespace
}  // namespace sluice::test::cells_test
