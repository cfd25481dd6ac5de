#include "sluice/lab/page.hpp"

#include "charts.hpp"
#include "drawing.hpp"
#include "test_seed.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/lab/percentiles.hpp"

namespace sluice::lab::page::page_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count(const std::string& text, std::string_view what) {
  std::size_t number = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++number;
  }
  return number;
}

TEST(LabPageText, EscapesWhatHtmlWouldActOn) {
  EXPECT_EQ(escaped("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escaped("Gr\xC3\xBC\xC3\x9F"
                    "e \xE2\x82\xAC \xF0\x9F\x98\x80\n\t."),
            "Gr\xC3\xBC\xC3\x9F"
            "e \xE2\x82\xAC \xF0\x9F\x98\x80\n\t.");
}

TEST(LabPageText, ReplacesWhatHtmlCannotHold) {
  const std::string lost = "\xEF\xBF\xBD";
  EXPECT_EQ(escaped(std::string_view("a\0b\x1B[31m\x7F", 9)),
            "a" + lost + "b" + lost + "[31m" + lost);
  EXPECT_EQ(escaped("\xFF"), lost);
  EXPECT_EQ(escaped("\xC3"), lost) << "cut short";
  EXPECT_EQ(escaped("\xC0\xBC"), lost + lost) << "'<' in more bytes than it needs";
  EXPECT_EQ(escaped("\xC2\x85"), lost + lost) << "a control character of two bytes";
  EXPECT_EQ(escaped("\xED\xA0\x80"), lost + lost + lost) << "a surrogate";
}

TEST(LabPageText, SaysTimesWithThreeDigitsOrMore) {
  EXPECT_EQ(time_text(0), "0 ms");
  EXPECT_EQ(time_text(0.1702), "170.2 \xC2\xB5s");
  EXPECT_EQ(time_text(46.123), "46.12 ms");
  EXPECT_EQ(time_text(500), "500 ms");
  EXPECT_EQ(time_text(4426.4), "4.426 s");
  EXPECT_EQ(decimal(-0.01), "0");
  EXPECT_EQ(decimal(100, 0), "100");
}

TEST(LabPageAxis, PutsValuesWhereTheyBelong) {
  const axis linear{0, 10, false, 100, 200};
  EXPECT_DOUBLE_EQ(linear.at(5), 150);
  const axis decades{1, 100, true, 300, 100};
  EXPECT_DOUBLE_EQ(decades.at(10), 200);
  EXPECT_DOUBLE_EQ(decades.clamped(0), 300);
  EXPECT_DOUBLE_EQ(decades.clamped(1e9), 100);
}

TEST(LabPageAxis, HasRoundTicks) {
  EXPECT_THAT(ticks({0, 100, false}, 6), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_THAT(ticks({1, 100, true}, 8), ElementsAre(1, 2, 5, 10, 20, 50, 100));
  EXPECT_THAT(ticks({1, 100, true}, 5), ElementsAre(1, 3, 10, 30, 100));
  EXPECT_THAT(ticks({1, 1e6, true}, 7), ElementsAre(1, 10, 100, 1e3, 1e4, 1e5, 1e6));
  EXPECT_THAT(ticks({43, 57, true}, 4), ElementsAre(45, 50, 55));
}

TEST(LabPageAxis, HasTwoTicksOrMoreAndNeverTooMany) {
  const sluice::test::random_seed seed;
  std::mt19937 random(seed.value());
  for (int i = 0; i < 5000; ++i) {
    std::uniform_real_distribution<double> power(-6, 9);
    const double low = std::pow(10, power(random)), other = std::pow(10, power(random));
    const axis of = around({low, other}, i % 2 == 0, 0, 1);
    ASSERT_LT(of.low, of.high);
    const std::size_t most = 2 + random() % 10;
    const auto made = ticks(of, most);
    ASSERT_GE(made.size(), 2u) << low << ' ' << other;
    ASSERT_LE(made.size(), most) << low << ' ' << other;
    ASSERT_TRUE(std::is_sorted(made.begin(), made.end()));
    ASSERT_GE(of.at(made.front()), -1e-6);
    ASSERT_LE(of.at(made.back()), 1 + 1e-6);
  }
}

TEST(LabPageAxis, IsOneOfSomeLengthAroundOneValueOrNone) {
  for (const bool logarithmic : {false, true}) {
    for (const std::vector<double>& values :
         {std::vector<double>{}, {5}, {5, 5}, {0}, {std::numeric_limits<double>::infinity()}}) {
      const axis made = around(values, logarithmic, 0, 1);
      EXPECT_LT(made.low, made.high);
      EXPECT_GE(ticks(made, 5).size(), 2u);
    }
  }
}

/// Places 15 random labels, and checks that none lies on a line, on another label or outside.
/// \return how many found a place.
std::ptrdiff_t place_random_labels(std::mt19937& random) {
  std::uniform_real_distribution<double> across(0, 400), down(0, 200);
  const box bounds{0, 0, 400, 200};
  const std::vector<box> lines{{0, down(random), 400, 2}};
  std::vector<label_wanted> wanted;
  for (int k = 0; k < 15; ++k) wanted.push_back({across(random), down(random), 90, 14});
  const auto made = place_labels(wanted, bounds, lines);
  EXPECT_EQ(made.size(), wanted.size());
  for (std::size_t a = 0; a < made.size(); ++a) {
    if (!made[a]) continue;
    EXPECT_FALSE(made[a]->where.overlaps(lines[0]));
    EXPECT_GE(made[a]->where.x, 0);
    EXPECT_LE(made[a]->where.x + made[a]->where.width, 400);
    for (std::size_t b = 0; b < a; ++b) {
      EXPECT_FALSE(made[b] && made[a]->where.overlaps(made[b]->where));
    }
  }
  return std::count_if(made.begin(), made.end(), [](const auto& one) { return !!one; });
}

TEST(LabPageLabels, FindPlacesMoreOftenThanNot) {
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) EXPECT_GT(place_random_labels(random), 7);
}

TEST(LabPageLabels, LieOnNothing) {
  const sluice::test::random_seed seed;
  std::mt19937 random(seed.value());
  for (int i = 0; i < 50; ++i) place_random_labels(random);
}

TEST(LabPageQuantiles, AreThoseOfTheTable) {
  std::vector<duration> thousand;
  for (int i = 1000; i > 0; --i) thousand.emplace_back(i);
  const auto made = quantiles_of(thousand);
  EXPECT_EQ(made[0], 1ns);
  EXPECT_EQ(made[quantiles_per_decade], 900ns);
  EXPECT_EQ(made[2 * quantiles_per_decade], 990ns);
  EXPECT_EQ(made[3 * quantiles_per_decade], 999ns);
  EXPECT_EQ(made.back(), 1000ns);
  EXPECT_EQ(made.size(), 3 * quantiles_per_decade + 2) << "no more than it takes to get there";
  EXPECT_TRUE(quantiles_of({}).empty());
  EXPECT_THAT(quantiles_of({7ns}), ElementsAre(7ns));

  const sluice::test::random_seed seed;
  std::mt19937 random(seed.value());
  for (int i = 0; i < 100; ++i) {
    std::vector<duration> samples(101 + random() % 3000);
    for (auto& each : samples) each = duration(random() % 100000);
    const percentiles table = percentiles_of(samples);
    const auto curve = quantiles_of(samples);
    ASSERT_EQ(curve[quantiles_per_decade], table.p90);
    ASSERT_EQ(curve[2 * quantiles_per_decade], table.p99);
    ASSERT_EQ(curve.back(), table.max);
    ASSERT_LT(curve.size(), 5 * quantiles_per_decade);
  }
}

/// A page with one of everything, and nothing polite in it.
document rude(const std::string& text) {
  document made{text, text, text, {{text, text}}, {{text, false}, {"other", true}}, {}, {text}};
  section one;
  one.facets = {{text, text}};
  one.summary = text;
  one.distributions = {{text, {{0, 3, quantiles_of({1ms, 2ms, 3ms})}}, 2ms}};
  one.trade =
      frontier{text,
               text,
               text,
               {{0, text, {5, 1}, {0.5, 0.1}, true, 0.6}, {1, {}, {9, 0}, {0.6, 0}, false, {}}},
               {{4, 0.5}, {20, 0.9}},
               text,
               4.5};
  one.grids = {{text,
                text,
                text,
                text,
                {text, "b"},
                {text},
                text,
                text,
                text,
                {{0, text, {{-0.5, text, text}, {{}, text, text}}}},
                {0.5},
                text}};
  one.events =
      timeline{text, 0s, 10s, {{0, text, {{text, {{1s, 2s, state::suspended}}, {{3s, 4}}, {5s}}}}}};
  one.figures = table{{{text, text}}, {{0, text, {{text, text}}}}};
  made.sections = {one, one};
  made.sections[1].facets[0].second += "!";
  return made;
}

TEST(LabPage, ShowsNamesAsTextWhateverTheyHold) {
  const std::string page = render(rude("\"'--><script>alert(1)</script><img src=x onerror=y>\xFF"));
  EXPECT_EQ(count(page, "<script"), 1u) << "its own";
  EXPECT_EQ(count(page, "</script"), 1u);
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("-->")));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;"));
}

TEST(LabPage, LoadsNothing) {
  const std::string page = render(rude("x"));
  for (const char* const word :
       {"http:", "https:", "//", "url(", "@import", "src=", "data:", "import("}) {
    // Comments of the script are the one place for "//".
    const std::string sought = std::string_view(word) == "//" ? "=\"//" : word;
    EXPECT_THAT(page, Not(HasSubstr(sought)));
  }
  EXPECT_EQ(count(page, "href=\""), count(page, "href=\"#")) << "only within itself";
}

TEST(LabPage, IsTheSameForTheSameDocument) {
  EXPECT_EQ(render(rude("x")), render(rude("x")));
  EXPECT_THAT(render({}), HasSubstr("</html>"));
}

TEST(LabPage, KeepsOneLookForEachActorAndAnotherForOthers) {
  std::vector<actor> actors;
  for (int i = 0; i < 24; ++i) actors.push_back({"a", i % 3 == 0});
  const cast who(actors);
  std::vector<std::string> looks;
  std::string style = who.style();
  for (std::size_t i = 0; i < actors.size(); ++i) {
    const std::string begin = ".a" + std::to_string(i) + "{";
    const std::size_t at = style.find(begin) + begin.size();
    looks.push_back(style.substr(at, style.find('}', at) - at) + who.marker(i, 0, 0));
  }
  std::sort(looks.begin(), looks.end());
  EXPECT_EQ(std::unique(looks.begin(), looks.end()), looks.end());
}

TEST(LabPageTimeline, DrawsWhatIsInTheWindowInMillisecondsFromItsBegin) {
  const std::vector<actor> actors{{"a", false}};
  const timeline what{"",
                      10s,
                      20s,
                      {{0,
                        "",
                        {{"queue",
                          {{0s, 9s, state::runs},
                           {9s, 11s, state::suspending},
                           {12s, 12s + 5ms, state::resuming},
                           {19s, 30s, state::suspended}},
                          {},
                          {}},
                         {"online", {}, {{1s, 7}, {9s, 2}, {12s, 4}, {25s, 9}}, {9s, 15s}}}}}};
  const std::string made = draw(what, cast(actors));
  EXPECT_THAT(made, HasSubstr("data-state=\"suspending\" d=\"M0 0h1000v1h-1000z\""));
  EXPECT_THAT(made, HasSubstr("data-state=\"resuming\" d=\"M2000 0h5v1h-5z\""));
  EXPECT_THAT(made, HasSubstr("data-state=\"suspended\" d=\"M9000 0h1000v1h-1000z\""));
  EXPECT_THAT(made, Not(HasSubstr("data-state=\"runs\"")));
  EXPECT_THAT(made, HasSubstr("data-peak=\"4\" d=\"M0 1V0.65H2000V0.3H10000V1Z\""));
  EXPECT_THAT(made, HasSubstr("class=\"instants\" d=\"M5000 0v.24\""));
}

TEST(LabPageFrontier, ShowsWhatIsJudgedOnceMoreWhereItLiesClose) {
  const std::vector<actor> actors{{"none", true}, {"a", false}, {"b", false}};
  frontier what{"Trade", "x", "y", {}, {{90, 0.6}, {400, 0.7}}, "bound", 95};
  what.points = {{0, {}, {5000, 0}, {0.9, 0}, false, {}},
                 {1, {}, {100, 0}, {0.50, 0}, false, 0.6},
                 {2, {}, {110, 0}, {0.52, 0}, false, 0.61}};
  const std::string close = draw(what, cast(actors));
  EXPECT_EQ(count(close, "<svg class=\"chart\""), 2u);
  EXPECT_EQ(count(close, ">none</text>"), 1u);
  EXPECT_EQ(count(close, ">a</text>"), 2u);
  EXPECT_THAT(
      close,
      HasSubstr("p99 100 ms\noffline work 50 % of offline work alone\n83.3 % of the bound (60 %)"));
  what.points[1].latency_ms.mean = 4000;
  what.points[1].throughput.mean = 0.9;
  EXPECT_EQ(count(draw(what, cast(actors)), "<svg class=\"chart\""), 1u);
}

}  // namespace
}  // namespace sluice::lab::page::page_test
