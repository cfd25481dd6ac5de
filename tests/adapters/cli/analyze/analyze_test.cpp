// sluice analyze as users run it.

#include "command.hpp"
#include "temporary_directory.hpp"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::test::analyze_test {
namespace {

using testing::HasSubstr;

constexpr const char* program = SLUICE_PROGRAM;

std::string sample(const std::string& name) { return SLUICE_LOG_SAMPLES "/" + name; }

class SluiceAnalyze : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream{directory_ + "/" + name, std::ios::binary} << content;
    return directory_ + "/" + name;
  }

  const temporary_directory made_;
  const std::string directory_ = made_.path();
};

TEST_F(SluiceAnalyze, ShowsOneLogAndHoldsTwoAgainstEachOther) {
  command one{program, {"analyze", sample("hip_alone.log")}, {}};
  EXPECT_EQ(one.ends(), 0) << one.err();
  EXPECT_EQ(one.err(), "");
  EXPECT_THAT(one.out(), HasSubstr("1 hardware queue of 1 process: 1 normal;"));
  command two{program, {"analyze", sample("hip_alone.log"), sample("hip_shared.log")}, {}};
  EXPECT_EQ(two.ends(), 0) << two.err();
  EXPECT_THAT(two.out(), HasSubstr("sharing, backlog\n"));
  command json{program, {"analyze", "--json", sample("hip_shared.log")}, {}};
  ASSERT_EQ(json.ends(), 0) << json.err();
  const auto value = boost::json::parse(json.out());
  EXPECT_EQ(value.at("version").to_number<int>(), 1);
  EXPECT_EQ(value.at("files").at(0).at("queues").as_array().size(), 2U);
}

TEST_F(SluiceAnalyze, ReadsStandardInput) {
  command piped{
      "/bin/sh", {"-c", "\"$0\" analyze - <\"$1\"", program, sample("ftrace_function.txt")}, {}};
  EXPECT_EQ(piped.ends(), 0) << piped.err();
  EXPECT_THAT(piped.out(), HasSubstr("2 queues were created in the driver\n"));
  command twice{program, {"analyze", "-", "-"}, {}};
  EXPECT_EQ(twice.ends(), 2);
  EXPECT_EQ(
      twice.err(),
      "sluice: '-' is given more than once: standard input can be read only once; name other logs "
      "as files\n");
  EXPECT_EQ(twice.out(), "");
}

TEST_F(SluiceAnalyze, SaysWhatCannotBeRead) {
  command none{program, {"analyze"}, {}};
  EXPECT_EQ(none.ends(), 2);
  command missing{program, {"analyze", sample("hip_alone.log"), "/nonexistent.log"}, {}};
  EXPECT_EQ(missing.ends(), 1);
  EXPECT_EQ(missing.err(),
            "sluice: /nonexistent.log: cannot read the log: No such file or directory\n");
  EXPECT_EQ(missing.out(), "");
  command directory{program, {"analyze", "/tmp"}, {}};
  EXPECT_EQ(directory.ends(), 1);
  EXPECT_EQ(directory.err(), "sluice: /tmp: cannot read the log: Is a directory\n");
}

// A wrong file is noticed, and does not keep the others from being shown.
TEST_F(SluiceAnalyze, CountsWhatIsNoLog) {
  const auto empty = file("empty", "");
  command nothing{program, {"analyze", empty}, {}};
  EXPECT_EQ(nothing.ends(), 1);
  EXPECT_EQ(nothing.err(), "sluice: " + empty + ": is empty\n");
  std::string bytes = "# a comment that is no tracer's\n";
  for (unsigned i = 0; i < 65536; ++i) bytes += static_cast<char>(i * i >> 4U);
  const auto no_log = file("binary", bytes);
  command binary{program, {"analyze", sample("hip_alone.log"), no_log}, {}};
  EXPECT_EQ(binary.ends(), 1);
  EXPECT_EQ(binary.err(),
            "sluice: " + no_log + ": no line looks like AMD_LOG_LEVEL=5 output or ftrace\n");
  EXPECT_THAT(binary.out(), HasSubstr("1 hardware queue of 1 process"));
  for (const char each : binary.out())
    ASSERT_TRUE(each == '\n' || (each >= ' ' && each <= '~')) << static_cast<int>(each);
  // One line without an end, longer than anything that is kept.
  const auto endless = file("endless", std::string(std::size_t{4} << 20U, 'x'));
  command one_line{program, {"analyze", "--json", endless}, {}};
  EXPECT_EQ(one_line.ends(), 1);
  EXPECT_EQ(boost::json::parse(one_line.out()).at("files").at(0).at("lines").to_number<int>(), 1);
}

}  // namespace
}  // namespace sluice::test::analyze_test
